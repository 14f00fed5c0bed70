"""Small requests of the Open Inference Protocol, answered together, in JSON or binary."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any

import orjson

from cohort.codec import MAX_ID, RowRequest, Selection, flat_texts, raw_parts
from cohort.codec.json_body import parse_json
from cohort.codec.labels import MAX_TOP
from cohort.codec.templates import (
    NO_LABELS,
    UNASKED,
    Gap,
    Parts,
    ResponseTemplate,
    Shapes,
    Text,
    id_gap,
    name_gap,
    output_gap,
)
from cohort.http.calls import HEADER_LENGTH, JSON, FixedHeaders
from cohort.tensors import BY_NAME

MAX_ID_NUMBER = 1 << 64


@lru_cache(256)
def _template(
    outputs: tuple[str, ...] | None, binary: tuple[bool, ...], identified: bool, top: int
) -> ResponseTemplate:
    """Return how `InferCall.encode` writes responses.

    binary: True for each output that is sent as bytes; one value if the request names no outputs.
    identified: True if requests have an id.
    top: Labels per row, as in `ResponseTemplate`.
    """

    def text(selection: Selection, shapes: Shapes) -> Text:
        document = {"model_name": selection.model, "model_version": selection.version}
        parts: Parts = [orjson.dumps(document)[:-1]]
        if identified:
            parts += [b',"id":', id_gap]
        if selection.variant:
            parts += [b',"parameters":', orjson.dumps({"variant": selection.variant})]
        parts.append(b',"outputs":[')
        tail: list[Gap] = []
        row_bytes = 0
        as_bytes = binary if outputs is not None else binary * len(shapes)
        for place, shape in enumerate(shapes):
            datatype = selection.datatypes[place]
            name = selection.names[place]
            tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
            if place:
                parts.append(b",")
            if as_bytes[place]:
                size = prod(shape) * BY_NAME[datatype].dtype.itemsize
                row_bytes += size // shape[0]
                tensor["parameters"] = {"binary_data_size": size}
                parts.append(orjson.dumps(tensor))
                tail.append(output_gap(place, raw_parts))
            else:
                data = output_gap(place, flat_texts)
                parts += [orjson.dumps(tensor)[:-1], b',"data":', data, b"}"]
        for place, labeller in selection.labelled(top):
            shape = labeller.shape(shapes[place], top)
            tensor = {"name": labeller.output, "datatype": "BYTES", "shape": shape}
            names = name_gap(place, labeller, top, orjson.dumps)
            parts += [b",", orjson.dumps(tensor)[:-1], b',"data":', names, b"}"]
        parts += [b"]}", *tail]
        if not tail:
            return Text(parts, JSON)

        def seal(body: bytes, rows: int) -> tuple[bytes, FixedHeaders]:
            return body, _headers(len(body) - rows * row_bytes)

        return Text(parts, seal=seal)

    return ResponseTemplate(outputs, text, sized=True, top=top)


@lru_cache(256)
def _headers(length: int) -> FixedHeaders:
    return FixedHeaders({"content-type": "application/octet-stream", HEADER_LENGTH: str(length)})


_ALL_IN_JSON = _template(None, (False,), False, 0)


def read_infer_rows(body: bytes) -> tuple[Any, RowRequest | None]:
    """Parse a body that may hold rows for one input in JSON, like `read_predict_rows`."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_json(body), None  # raises with the reason
    found = _tensor_of(document)
    if found is None:
        return document, None
    request, width, size = found
    data: Any = request.values
    if len(data) == request.rows and data[0].__class__ is list:
        if any(row.__class__ is not list or len(row) != width for row in data):
            return document, None
        data = [*chain.from_iterable(data)]
    if size is not None or len(data) != request.rows * width:
        return document, None
    request.body, request.document, request.values = body, document, data
    return document, request


def read_binary_rows(length: int) -> Callable[[bytes], tuple[Any, RowRequest | None]]:
    """Return a reader for bodies whose first `length` bytes are JSON and whose rest is rows.

    It returns no document; other bodies are parsed from the start.
    """

    def read(body: bytes) -> tuple[Any, RowRequest | None]:
        found = _head_of(body[:length])
        if found is None:
            return None, None
        head, width, size = found
        name, datatype, rows = head.name, head.datatype, head.rows
        row_bytes = width * BY_NAME[datatype or ""].dtype.itemsize
        if not size == len(body) - length == rows * row_bytes:
            return None, None
        return None, RowRequest(
            body, None, None, name, datatype, body[length:], rows, head.template, head.id
        )

    return read


@lru_cache(1024)
def _head_of(head: bytes) -> tuple[RowRequest, int, int | None] | None:
    """Parse and cache a head. A client sends the same head for each request with as many rows."""
    try:
        return _tensor_of(orjson.loads(head))
    except orjson.JSONDecodeError:
        return None


def _tensor_of(document: Any) -> tuple[RowRequest, int, int | None] | None:
    """Return a request for rows of one input and nothing but outputs, or None for any other.

    Also return the length of a row, and the bytes behind the JSON, or None if it has `data`.
    """
    if document.__class__ is not dict:
        return None
    inputs = document.get("inputs")
    if inputs.__class__ is not list or len(inputs) != 1 or inputs[0].__class__ is not dict:
        return None
    tensor = inputs[0]
    name, datatype, shape = tensor.get("name"), tensor.get("datatype"), tensor.get("shape")
    data, size = tensor.get("data"), None
    if data is None:
        data, size = [], _only(tensor.get("parameters"), "binary_data_size", int, -1)
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
        and data.__class__ is list
        and (size is None or size >= 0)
    ):
        return None
    id_, template = None, _ALL_IN_JSON
    if len(document) > 1:
        asked = _template_of(document)
        if asked is None:
            return None
        id_, template = asked
    rows, width = shape
    request = RowRequest(b"", None, None, name, datatype, data, rows, template, id_)
    return request, width, size


def _template_of(document: dict[str, Any]) -> tuple[str | None, ResponseTemplate] | None:
    """Return the id and the template for the outputs, or None if the document has more."""
    id_, parameters, outputs = (document.get(key) for key in ("id", "parameters", "outputs"))
    if 1 + sum(one is not None for one in (id_, parameters, outputs)) < len(document):
        return None
    if id_.__class__ is int and abs(id_) < MAX_ID_NUMBER:
        id_ = str(id_)
    if id_ is not None and (id_.__class__ is not str or len(id_) > MAX_ID):
        return None
    binary, top = False, 0
    if parameters is not None:
        known = _parameters_of(parameters)
        if known is None:
            return None
        binary, top = known
    names: tuple[str, ...] | None = None
    forms: tuple[bool, ...] = (binary,)
    if outputs:
        found = _outputs_of(outputs, binary=binary)
        if found is None:
            return None
        names, forms = found
    elif outputs is not None:
        return None
    if any(forms):
        if top:
            return None
        top = NO_LABELS
    if names is not None and not top > 0:
        top = UNASKED
    return id_ or None, _template(names, forms, bool(id_), top)


def _parameters_of(parameters: Any) -> tuple[bool, int] | None:
    """Return whether outputs are sent as bytes, and the labels per row; None if there is more."""
    if parameters.__class__ is not dict or not parameters:
        return None
    binary, top = False, 0
    for key, value in parameters.items():
        if key == "binary_data_output" and value.__class__ is bool:
            binary = value
        elif key == "top" and value.__class__ is int and 0 < value <= MAX_TOP:
            top = value
        else:
            return None
    return binary, top


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
    """Return the value of the only parameter, or the default if its name or type differs."""
    if parameters.__class__ is not dict or len(parameters) != 1:
        return default
    value = parameters.get(key)
    return value if value.__class__ is kind else default
