"""Small inference messages, answered together: rows of numbers for a model with one input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from google.protobuf.message import DecodeError

from cohort.codec import LONGEST_ID, Asked, RowAnswer, RowRequest, RunOutputs, Values, raw_parts
from cohort.codec.varints import varint
from cohort.rpc.contents import FIELDS
from cohort.rpc.inference_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from cohort.rpc.wire import DELIMITED
from cohort.tensors import BY_NAME

MOST_KNOWN_MESSAGES = 1024
"""Beginnings of messages that are remembered; callers can make them up."""

_RAW_INPUTS = bytes((ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | DELIMITED,))
_RAW_OUTPUTS = bytes((ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | DELIMITED,))
_ID = bytes((ModelInferResponse.ID_FIELD_NUMBER << 3 | DELIMITED,))
_INFER_RESPONSE = bytes((ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | DELIMITED,))


class MessageAnswer(NamedTuple):
    """A form of response.

    outputs: The outputs that the request names; None: it names none.
    identified: Whether it has an id.
    streamed: Whether it is one of a stream's.
    """

    outputs: tuple[str, ...] | None
    identified: bool
    streamed: bool

    def write(
        self, run: RunOutputs, counts: Sequence[int], ids: Sequence[str | None]
    ) -> Iterable[tuple[bytes, None]] | None:
        """As `RowAnswer.write`, and as `cohort.rpc.contents.write_response`."""
        shapes = tuple([array.shape[1:] for array in run.arrays])
        form = _Form(
            run.names, run.datatypes, shapes, run.model, run.version, run.variant, self.streamed
        )
        forms = {count: _parts_of(form, count) for count in set(counts)}
        columns = []
        for array in run.arrays:
            parts = raw_parts(array, counts)
            if parts is None:
                return None
            columns.append(parts)
        bodies = []
        for count, id_, raws in zip(counts, ids, zip(*columns, strict=True), strict=True):
            begin, middle, tags = forms[count]
            if id_:
                text = id_.encode()
                begin = b"%b%b%b%b" % (begin, _ID, varint(len(text)), text)
            body = b"".join((begin, middle, *chain.from_iterable(zip(tags, raws, strict=True))))
            if self.streamed:
                body = b"%b%b%b" % (_INFER_RESPONSE, varint(len(body)), body)
            bodies.append((body, None))
        return bodies


class _Form(NamedTuple):
    """What a response's bytes follow from, besides its rows."""

    names: tuple[str, ...]
    datatypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    model: str
    version: str
    variant: str
    streamed: bool


@lru_cache(1024)
def _parts_of(form: _Form, count: int) -> tuple[bytes, bytes, tuple[bytes, ...]]:
    """What a response to so many rows has before its id, behind it, and before each output."""
    begin = ModelInferResponse(model_name=form.model, model_version=form.version)
    rest = ModelInferResponse()
    if form.variant:
        rest.parameters["variant"].string_param = form.variant
    if form.streamed:  # Triton's mark of a request's last response; here each has one.
        rest.parameters["triton_final_response"].bool_param = True
    tags = []
    for name, datatype, shape in zip(form.names, form.datatypes, form.shapes, strict=True):
        output = rest.outputs.add(name=name, datatype=datatype, shape=(count, *shape))
        size = BY_NAME[datatype].dtype.itemsize
        for length in output.shape:
            size *= length
        tags.append(_RAW_OUTPUTS + varint(size))
    return begin.SerializeToString(), rest.SerializeToString(), tuple(tags)


@lru_cache(256)
def _answer(outputs: tuple[str, ...] | None, *, identified: bool, streamed: bool) -> MessageAnswer:
    return MessageAnswer(outputs, identified, streamed)


class _Start(NamedTuple):
    """What a message says before the bytes of its only tensor, which end it."""

    asked: Asked
    name: str | None
    datatype: str | None
    rows: int
    size: int  # of those bytes
    answer: RowAnswer


class MessageRows:
    """Reads messages that may hold rows for one input.

    A client sends the same bytes before each tensor, if it sends no ids. So a message is known by
    them, once one that began so was read whole.

    streamed: Whether they are a stream's.
    """

    def __init__(self, *, streamed: bool) -> None:
        self._streamed = streamed
        self._starts: dict[bytes, _Start] = {}
        self._lengths: dict[int, int] = {}  # by a message's length, that of its start

    def read(self, body: bytes) -> tuple[ModelInferRequest | None, RowRequest | None]:
        """The message, None where it was not parsed, and the rows, None for anything but rows."""
        at = self._lengths.get(len(body))
        if at is not None:
            start = self._starts.get(body[:at])
            if start is not None and at + start.size == len(body):
                asked, name, datatype, rows, _, answer = start
                return None, (asked, name, datatype, body[at:], rows, answer, None)
        try:
            message = ModelInferRequest.FromString(body)
        except (DecodeError, UnicodeDecodeError):
            return None, None  # whoever reads it next says so
        request = _rows_of(message, streamed=self._streamed)
        if request is not None and not message.id and message.raw_input_contents:
            self._learn(body, message, request)
        return message, request

    def _learn(self, body: bytes, message: ModelInferRequest, request: RowRequest) -> None:
        raw = message.raw_input_contents[0]
        asked, name, datatype, _, rows, answer, _ = request
        at = len(body) - len(raw)
        begin = body[:at]
        if begin not in self._starts:
            if not _ends_with_tensor(begin, message, raw):
                return
            if len(self._starts) >= MOST_KNOWN_MESSAGES:
                self._starts.clear()
                self._lengths.clear()
            self._starts[begin] = _Start(asked, name, datatype, rows, len(raw), answer)
        self._lengths[len(body)] = at


def _ends_with_tensor(begin: bytes, message: ModelInferRequest, raw: bytes) -> bool:
    """Whether a message that begins so ends with the bytes of its tensor: those alone change."""
    if not raw or not begin.endswith(_RAW_INPUTS + varint(len(raw))):
        return False
    others = bytes([byte ^ 255 for byte in raw])
    changed = ModelInferRequest.FromString(begin + others)
    if [*changed.raw_input_contents] != [others]:
        return False
    changed.raw_input_contents[0] = raw
    return bool(changed == message)


def _rows_of(message: ModelInferRequest, *, streamed: bool) -> RowRequest | None:
    if message.parameters or len(message.inputs) != 1:
        return None
    tensor = message.inputs[0]
    name, datatype, shape = tensor.name, tensor.datatype, tensor.shape
    if tensor.parameters or datatype not in BY_NAME or len(shape) != 2:
        return None
    rows, width = shape
    if rows < 1 or width < 1 or len(message.id) > LONGEST_ID:
        return None
    raws = message.raw_input_contents
    contents = tensor.contents.ListFields() if tensor.HasField("contents") else ()
    values: Values
    if raws:
        if contents or len(raws) > 1:
            return None
        values, size = raws[0], BY_NAME[datatype].dtype.itemsize
    else:
        if len(contents) != 1 or contents[0][0].name != FIELDS.get(datatype):
            return None
        values, size = [*contents[0][1]], 1
    if len(values) != rows * width * size:
        return None
    names = None
    if message.outputs:
        names = tuple([output.name for output in message.outputs])
        if len({*names}) != len(names) or any(one.parameters for one in message.outputs):
            return None
    answer = _answer(names, identified=bool(message.id), streamed=streamed)
    model, id_ = message.model_name or None, message.id or None
    asked = (model, message.model_version) if message.model_version else model
    return asked, name, datatype, values, rows, answer, id_
