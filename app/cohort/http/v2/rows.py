"""Small requests of the Open Inference Protocol, answered together, in JSON or binary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
import orjson

from cohort.codec import LONGEST_ID, RowRequest, RunOutputs, escaped, flat_texts, raw_parts
from cohort.codec.json_body import parse_json
from cohort.http.calls import HEADER_LENGTH, JSON, FixedHeaders
from cohort.tensors import BY_NAME

MAX_ID_NUMBER = 1 << 64


class InferAnswer(NamedTuple):
    """A form of response.

    outputs: The outputs that the request names; None: it names none.
    binary: Whether each of them is sent as bytes; one value where the request names none.
    identified: Whether it has an id.
    """

    outputs: tuple[str, ...] | None
    binary: tuple[bool, ...]
    identified: bool

    def write(
        self, run: RunOutputs, counts: Sequence[int], ids: Sequence[str | None]
    ) -> Iterable[tuple[bytes, object]] | None:
        """As `RowAnswer.write`, and as `InferCall.encode`."""
        binary = self.binary if self.outputs is not None else self.binary * len(run.arrays)
        fields: list[list[bytes]] = []
        tails: list[list[bytes]] = []
        for array, as_bytes in zip(run.arrays, binary, strict=True):
            parts = raw_parts(array, counts) if as_bytes else flat_texts(array, counts)
            if parts is None:
                return None
            (tails if as_bytes else fields).append(parts)
        if self.identified:
            fields.insert(0, [orjson.dumps(one) for one in ids])
        shapes = tuple([array.shape[1:] for array in run.arrays])
        form = _Form(
            run.names, run.datatypes, shapes, run.model, run.version, run.variant, binary,
            self.identified,
        )  # fmt: skip
        by_count = {count: _text_of(form, count) for count in set(counts)}
        texts = [by_count[count] for count in counts]
        if fields:
            texts = [text % one for text, one in zip(texts, zip(*fields, strict=True), strict=True)]
        elif tails:
            texts = [text % () for text in texts]
        if not tails:
            return zip(texts, repeat(JSON), strict=False)
        bodies = [b"".join(one) for one in zip(texts, *tails, strict=True)]
        return zip(bodies, [_binary_headers(len(text)) for text in texts], strict=True)


class _Form(NamedTuple):
    """What a response's text follows from, besides its rows."""

    names: tuple[str, ...]
    datatypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    model: str
    version: str
    variant: str
    binary: tuple[bool, ...]
    identified: bool


@lru_cache(1024)
def _text_of(form: _Form, count: int) -> bytes:
    """The JSON of a response to so many rows, with a `%b` for its id and for each output's data."""
    document: dict[str, Any] = {"model_name": form.model, "model_version": form.version}
    text = escaped(orjson.dumps(document)[:-1])
    if form.identified:
        text += b',"id":%b'
    if form.variant:
        text += b',"parameters":' + escaped(orjson.dumps({"variant": form.variant}))
    outputs = []
    for name, datatype, shape, binary in zip(
        form.names, form.datatypes, form.shapes, form.binary, strict=True
    ):
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": [count, *shape]}
        if binary:
            size = count * int(np.prod(shape)) * BY_NAME[datatype].dtype.itemsize
            output["parameters"] = {"binary_data_size": size}
            outputs.append(escaped(orjson.dumps(output)))
        else:
            outputs.append(escaped(orjson.dumps(output)[:-1]) + b',"data":%b}')
    return text + b',"outputs":[' + b",".join(outputs) + b"]}"


@lru_cache(256)
def _binary_headers(length: int) -> FixedHeaders:
    return FixedHeaders({"content-type": "application/octet-stream", HEADER_LENGTH: str(length)})


@lru_cache(256)
def _answer(
    outputs: tuple[str, ...] | None, binary: tuple[bool, ...], identified: bool
) -> InferAnswer:
    return InferAnswer(outputs, binary, identified)


_ALL_IN_JSON = _answer(None, (False,), False)


class _Tensor(NamedTuple):
    """One input of rows of numbers: `data` in JSON, or so many bytes behind it."""

    name: str
    datatype: str
    rows: int
    width: int
    data: list[float] | None
    size: int
    answer: InferAnswer
    id: str | None


def read_infer_rows(body: bytes) -> tuple[Any, RowRequest | None]:
    """Parse a body that may hold rows for one input in JSON, as `read_predict_rows`."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_json(body), None  # which says what is wrong
    tensor = _tensor_of(document)
    if tensor is None or tensor.data is None:
        return document, None
    name, datatype, rows, width, _, _, answer, id_ = tensor
    data: list[Any] = tensor.data
    if len(data) == rows and data[0].__class__ is list:
        if any(row.__class__ is not list or len(row) != width for row in data):
            return document, None
        data = [*chain.from_iterable(data)]
    if len(data) != rows * width:
        return document, None
    return document, (None, name, datatype, data, rows, answer, id_)


def read_binary_rows(length: int) -> Callable[[bytes], tuple[Any, RowRequest | None]]:
    """Give what reads a body whose first `length` bytes are JSON, and the others rows.

    It gives no document: another body is read from the start.
    """

    def read(body: bytes) -> tuple[Any, RowRequest | None]:
        tensor = _head_of(body[:length])
        if tensor is None or tensor.data is not None or len(body) - length != tensor.size:
            return None, None
        name, datatype, rows, width, _, size, answer, id_ = tensor
        if size != rows * width * BY_NAME[datatype].dtype.itemsize:
            return None, None
        return None, (None, name, datatype, body[length:], rows, answer, id_)

    return read


@lru_cache(1024)
def _head_of(head: bytes) -> _Tensor | None:
    """A client sends the same head with each request of as many rows."""
    try:
        return _tensor_of(orjson.loads(head))
    except orjson.JSONDecodeError:
        return None


def _tensor_of(document: Any) -> _Tensor | None:
    """The only input of a request of which nothing is asked but outputs; None for any other."""
    if document.__class__ is not dict:
        return None
    inputs = document.get("inputs")
    if inputs.__class__ is not list or len(inputs) != 1 or inputs[0].__class__ is not dict:
        return None
    tensor = inputs[0]
    name, datatype, shape = tensor.get("name"), tensor.get("datatype"), tensor.get("shape")
    data, size = tensor.get("data"), -1
    if data is None:
        size = _only(tensor.get("parameters"), "binary_data_size", int, -1)
    if not (
        len(tensor) == 4
        and name.__class__ is str
        and datatype.__class__ is str
        and datatype in BY_NAME
        and shape.__class__ is list
        and len(shape) == 2
        and shape[0].__class__ is shape[1].__class__ is int
        and shape[0] > 0
        and shape[1] > 0
        and (size >= 0 if data is None else data.__class__ is list)
    ):
        return None
    id_, answer = None, _ALL_IN_JSON
    if len(document) > 1:
        asked = _answer_of(document)
        if asked is None:
            return None
        id_, answer = asked
    return _Tensor(name, datatype, shape[0], shape[1], data, size, answer, id_)


def _answer_of(document: dict[str, Any]) -> tuple[str | None, InferAnswer] | None:
    """The id and what is asked of the outputs; None where there is more."""
    id_, parameters, outputs = (document.get(key) for key in ("id", "parameters", "outputs"))
    if 1 + sum(one is not None for one in (id_, parameters, outputs)) < len(document):
        return None
    if id_.__class__ is int and abs(id_) < MAX_ID_NUMBER:
        id_ = str(id_)
    if id_ is not None and (id_.__class__ is not str or len(id_) > LONGEST_ID):
        return None
    binary = False
    if parameters is not None:
        binary = _only(parameters, "binary_data_output", bool, None)
        if binary is None:
            return None
    names: tuple[str, ...] | None = None
    forms: tuple[bool, ...] = (binary,)
    if outputs:
        found = _outputs_of(outputs, binary=binary)
        if found is None:
            return None
        names, forms = found
    elif outputs is not None:
        return None
    return id_ or None, _answer(names, forms, bool(id_))


def _outputs_of(outputs: Any, *, binary: bool) -> tuple[tuple[str, ...], tuple[bool, ...]] | None:
    names: dict[str, bool] = {}
    if outputs.__class__ is not list:
        return None
    for output in outputs:
        name = output.get("name") if output.__class__ is dict else None
        if name.__class__ is not str or name in names:
            return None
        names[name] = binary
        if len(output) > 1:
            asked = _only(output.get("parameters"), "binary_data", bool, None)
            if asked is None or len(output) > 2:
                return None
            names[name] = asked
    return tuple(names), tuple(names.values())


def _only(parameters: Any, key: str, kind: type, default: Any) -> Any:
    """The value of the only parameter; the default where it is another one, or of another type."""
    if parameters.__class__ is not dict or len(parameters) != 1:
        return default
    value = parameters.get(key)
    return value if value.__class__ is kind else default
