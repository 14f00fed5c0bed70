"""Requests of one row each: read into one array, and answered from one array.

A small request costs more to take apart than its numbers cost to pack, and a response more to write
than its row. So the usual kind, one row of numbers for a model with one input, has a way that does
per request only what differs between requests. Whatever is not of that kind gives None here, and
goes the way of `PredictRequest`, whose arrays and responses these equal to the last byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from struct import error as PackError  # noqa: N812 - it is an exception, whatever its name says
from typing import Any

import numpy as np
import orjson

from app.codec.json_body import parse_json
from app.codec.json_outputs import BY_ITSELF
from app.codec.json_tensors import PACKERS
from app.tensors import Array, TensorSpec

LONGEST_BODY = 1024
"""Bytes; a longer one is no longer mostly overhead."""

Row = list[float]


Asked = tuple[str | None, str | None, Row]
"""The model, the input's name (None in the tutorials' form, which has none) and the row."""


def read_row(body: bytes) -> tuple[Any, Asked | None]:
    """Parse a body that may hold one row for one input, and at most a model's name beside it.

    Gives the document, and what it asks for; None in the place of that for any other body. Raises
    InvalidInput where the body is not JSON.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_json(body), None  # which says what is wrong
    if document.__class__ is not dict:
        return document, None
    model = name = None
    if len(document) != 1:
        model = document.get("model")
        if len(document) != 2 or model.__class__ is not str:
            return document, None
    rows = document.get("input")
    if rows is None:
        inputs = document.get("inputs")
        if inputs.__class__ is not dict or len(inputs) != 1:
            return document, None
        ((name, rows),) = inputs.items()
    if rows.__class__ is not list or len(rows) != 1:
        return document, None
    row = rows[0]
    if row.__class__ is not list or not row:
        return document, None
    return document, (model, name, row)


def is_coalescible(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """Whether a model takes one row of so many numbers and gives arrays that JSON writes as is."""
    if len(inputs) != 1 or not outputs:
        return False
    (spec,) = inputs
    return (
        spec.datatype in PACKERS
        and spec.shape is not None
        and len(spec.shape) == 2
        and isinstance(spec.shape[1], int)  # what a longer row takes is not known beforehand
        and all(one.transportable and one.dtype in BY_ITSELF for one in outputs)
    )


def pack_rows(bodies: Sequence[bytes], rows: Sequence[Row], datatype: str) -> Array | None:
    """Make an array [rows, width] of rows of one width; None where any value is in doubt."""
    text = b"".join(bodies)
    if b"true" in text or b"false" in text:  # they pack as 1 and 0
        return None
    flat = [*chain.from_iterable(rows)]
    packers, dtype = PACKERS[datatype]
    try:
        return np.ndarray((len(rows), len(rows[0])), dtype, packers[len(flat)](*flat))
    except (PackError, OverflowError, TypeError):
        return None


def write_rows(
    outputs: Sequence[tuple[str, Array]], *, model: str, version: str, single: bool, seconds: float
) -> list[bytes] | None:
    """Write one response per row; None where outputs have not one row each, NaN or infinity.

    outputs: The names and arrays of the outputs; axis 0 is the request.
    model, version: The names of the version that answered.
    single: Whether to write what `encode_simple` would, rather than `encode_prediction`.
    seconds: The inference time.
    """
    pieces = []
    for _, array in outputs:
        cut = _cut(array)
        if cut is None:
            return None
        pieces.append(cut)
    if len({len(cut) for cut in pieces}) > 1:
        return None
    before, after = _form(tuple([name for name, _ in outputs]), model, version, single)
    form = before + orjson.dumps(int(seconds * 1e6) / 1000) + after
    return [form % one for one in zip(*pieces, strict=True)]


@lru_cache(1024)
def _form(names: tuple[str, ...], model: str, version: str, single: bool) -> tuple[bytes, bytes]:
    """The response before and after its inference time, with a `%b` for each output."""
    who = _escaped(orjson.dumps({"model": model, "version": version})[1:-1])
    values = b",".join([_escaped(orjson.dumps(name)) + b":%b" for name in names])
    if not single:
        return b"{" + who + b',"outputs":{' + values + b'},"inference_time_ms":', b"}"
    prediction = b"%b" if len(names) == 1 else b"{" + values + b"}"
    return b'{"prediction":' + prediction + b',"inference_time_ms":', b"," + who + b"}"


def _cut(array: Array) -> list[bytes] | None:
    """Write each row of `array` as an array of one row."""
    rank = array.ndim
    if not array.size or not rank or array.dtype not in BY_ITSELF:
        return None
    text = orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in text:
        return None
    opened, closed = b"[" * rank, b"]" * rank
    rows = text[rank:-rank].split(closed[1:] + b"," + opened[1:])
    if len(rows) != len(array):
        return None
    return [b"%b%b%b" % (opened, row, closed) for row in rows]


def _escaped(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")
