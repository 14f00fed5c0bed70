"""Small inference messages for batches: rows of numbers for a model with one input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from cohort.codec import MAX_ID, Asked, RowRequest, RunOutputs, Selection, Values, raw_parts
from cohort.codec.binary import to_bytes
from cohort.codec.labels import MAX_TOP
from cohort.codec.templates import (
    UNASKED,
    Parts,
    ResponseTemplate,
    Shapes,
    Text,
    name_gap,
    output_gap,
)
from cohort.codec.varints import varint
from cohort.rpc.contents import FIELDS
from cohort.rpc.inference_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from cohort.rpc.wire import DELIMITED
from cohort.tensors import BY_NAME

MAX_KNOWN_MESSAGES = 1024
"""Maximum number of remembered message starts, because callers can invent new ones."""

_RAW_INPUTS = bytes((ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | DELIMITED,))
_RAW_OUTPUTS = bytes((ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | DELIMITED,))
_ID = bytes((ModelInferResponse.ID_FIELD_NUMBER << 3 | DELIMITED,))
_INFER_RESPONSE = bytes((ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | DELIMITED,))


@lru_cache(256)
def _template(
    outputs: tuple[str, ...] | None, *, identified: bool, streamed: bool, top: int
) -> ResponseTemplate:
    """Return a template of the responses that `cohort.rpc.contents.write_response` writes.

    identified: True if requests have an id.
    streamed: True for requests of a stream.
    top: The `top` of `ResponseTemplate`.
    """

    def text(selection: Selection, shapes: Shapes) -> Text:
        begin = ModelInferResponse(model_name=selection.model, model_version=selection.version)
        rest = ModelInferResponse()
        if selection.variant:
            rest.parameters["variant"].string_param = selection.variant
        if streamed:  # Triton's mark of a request's last response; here each has one.
            rest.parameters["triton_final_response"].bool_param = True
        raws: Parts = []
        for place, shape in enumerate(shapes):
            datatype = selection.datatypes[place]
            rest.outputs.add(name=selection.names[place], datatype=datatype, shape=shape)
            size = prod(shape) * BY_NAME[datatype].dtype.itemsize
            raws += [_RAW_OUTPUTS + varint(size), output_gap(place, raw_parts)]
        for place, labeller in selection.labelled(top):
            shape = labeller.shape(shapes[place], top)
            rest.outputs.add(name=labeller.output, datatype="BYTES", shape=shape)
            raws += [_RAW_OUTPUTS, name_gap(place, labeller, top, _raw_names)]
        ids = [_id_gap] if identified else []
        parts = [begin.SerializeToString(), *ids, rest.SerializeToString(), *raws]
        return Text(parts, seal=_in_stream if streamed else None)

    return ResponseTemplate(outputs, text, sized=True, top=top)


def _raw_names(names: Sequence[str]) -> bytes:
    data = bytes(to_bytes(np.array(names, np.object_)))
    return b"%b%b" % (varint(len(data)), data)


def _id_gap(run: RunOutputs) -> Sequence[bytes]:
    texts = [(one or "").encode() for one in run.ids]
    return [b"%b%b%b" % (_ID, varint(len(text)), text) for text in texts]


def _in_stream(body: bytes, _: int) -> tuple[bytes, None]:
    """Wrap a response as a message of a stream."""
    return b"%b%b%b" % (_INFER_RESPONSE, varint(len(body)), body), None


class _Start(NamedTuple):
    """The content of a message before the bytes of its only tensor, which come last."""

    asked: Asked
    name: str | None
    datatype: str | None
    rows: int
    size: int  # the tensor's bytes
    template: ResponseTemplate


class MessageRows:
    """A reader of messages that may contain rows for one input.

    A client that sends no ids sends the same bytes before each tensor. After one complete parse,
    these bytes identify later messages, which are then not parsed.

    streamed: True for messages of a stream.
    """

    def __init__(self, *, streamed: bool) -> None:
        self._streamed = streamed
        self._starts: dict[bytes, _Start] = {}
        self._lengths: dict[int, int] = {}  # message length: length of its start

    def read(self, body: bytes) -> tuple[ModelInferRequest | None, RowRequest | None]:
        """Return the message, or None if it was not parsed, and its rows, or None without rows."""
        at = self._lengths.get(len(body))
        if at is not None:
            start = self._starts.get(body[:at])
            if start is not None and at + start.size == len(body):
                asked, name, datatype, rows, _, template = start
                return None, RowRequest(
                    body, None, asked, name, datatype, body[at:], rows, template, None
                )
        try:
            message = ModelInferRequest.FromString(body)
        except (DecodeError, UnicodeDecodeError):
            return None, None  # the next reader raises the error
        request = _rows_of(body, message, streamed=self._streamed)
        if request is not None and not message.id and message.raw_input_contents:
            self._learn(message, request)
        return message, request

    def _learn(self, message: ModelInferRequest, request: RowRequest) -> None:
        body, raw = request.body, message.raw_input_contents[0]
        at = len(body) - len(raw)
        begin = body[:at]
        if begin not in self._starts:
            if not _ends_with_tensor(begin, message, raw):
                return
            if len(self._starts) >= MAX_KNOWN_MESSAGES:
                self._starts.clear()
                self._lengths.clear()
            self._starts[begin] = _Start(
                request.asked, request.name, request.datatype, request.rows, len(raw),
                request.template,
            )  # fmt: skip
        self._lengths[len(body)] = at


def _ends_with_tensor(begin: bytes, message: ModelInferRequest, raw: bytes) -> bool:
    """Return True if changing the tensor's bytes at the end changes nothing else in the message."""
    if not raw or not begin.endswith(_RAW_INPUTS + varint(len(raw))):
        return False
    others = bytes([byte ^ 255 for byte in raw])
    changed = ModelInferRequest.FromString(begin + others)
    if [*changed.raw_input_contents] != [others]:
        return False
    changed.raw_input_contents[0] = raw
    return bool(changed == message)


def _rows_of(body: bytes, message: ModelInferRequest, *, streamed: bool) -> RowRequest | None:
    if len(message.inputs) != 1:
        return None
    top = 0
    if message.parameters and not (top := _only_top(message)):
        return None
    tensor = message.inputs[0]
    name, datatype, shape = tensor.name, tensor.datatype, tensor.shape
    if tensor.parameters or datatype not in BY_NAME or len(shape) != 2:
        return None
    rows, width = shape
    if rows < 1 or width < 1 or len(message.id) > MAX_ID:
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
    if names is not None and not top:
        top = UNASKED
    template = _template(names, identified=bool(message.id), streamed=streamed, top=top)
    model, id_ = message.model_name or None, message.id or None
    asked = (model, message.model_version) if message.model_version else model
    return RowRequest(body, message, asked, name, datatype, values, rows, template, id_)


def _only_top(message: ModelInferRequest) -> int:
    """Return `top` if it is valid and the only parameter, else 0: the message is read in full."""
    if len(message.parameters) > 1 or "top" not in message.parameters:
        return 0
    top = message.parameters["top"].int64_param
    return top if 0 < top <= MAX_TOP else 0
