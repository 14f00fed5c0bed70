"""Small requests of rows: packed into one array, and answered from one array.

Parsing a small request costs more than packing its numbers. Writing its response costs more than
writing its rows. So the usual request, a few rows of numbers for a model with one input, has a fast
path. It does per request only what differs between requests. For all other requests the functions
here return None, and the general path handles them. Both paths give identical arrays and bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from struct import error as PackError  # noqa: N812 - it is an exception class
from typing import Any

import numpy as np
import orjson

from cohort.codec.json_outputs import BY_ITSELF
from cohort.codec.json_tensors import PACKERS
from cohort.codec.templates import ResponseTemplate
from cohort.tensors import Array, TensorSpec

MAX_ROWS_BODY_BYTES = 4096
"""Maximum bytes of a body; overhead no longer dominates in a longer one."""

Values = list[float] | bytes
"""The numbers of rows as a flat list from JSON, or as bytes in the model's datatype."""

Asked = str | tuple[str | None, str] | None
"""The requested model, or model and version; None if the request names no model."""


@dataclass(slots=True)
class RowRequest:
    """A request with rows of numbers.

    body, document: The body as received, and parsed; the document is None if it was not parsed.
    asked: The requested model and version.
    name, datatype: The name and datatype of the input; None if the body does not give them.
    values: The numbers.
    rows: The number of rows.
    template: The template of the response.
    id: The id of the request; None if it did not have one.
    """

    body: bytes
    document: Any = field(compare=False)
    asked: Asked
    name: str | None
    datatype: str | None
    values: Values
    rows: int
    template: ResponseTemplate
    id: str | None


def flat_rows(rows: object) -> tuple[list[float], int] | None:
    """Return the numbers and the count of equally long lists in a list; None for other values."""
    if rows.__class__ is not list or not rows:
        return None
    nested: list[list[float]] = rows
    first = nested[0]
    if first.__class__ is not list or not first:
        return None
    if len(nested) == 1:
        return first, 1
    width = len(first)
    for row in nested:
        if row.__class__ is not list or len(row) != width:
            return None
    return [*chain.from_iterable(nested)], len(nested)


def is_coalescible(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """Return True if a model has one input of fixed-width rows and outputs that orjson writes."""
    if len(inputs) != 1 or not outputs:
        return False
    (spec,) = inputs
    return (
        spec.datatype in PACKERS
        and spec.shape is not None
        and len(spec.shape) == 2
        and isinstance(spec.shape[1], int)  # the width must be known before the body is read
        and all(one.transportable and one.dtype in BY_ITSELF for one in outputs)
    )


def pack_rows(
    bodies: Sequence[bytes], values: Sequence[Values], spec: TensorSpec, rows: int
) -> Array | None:
    """Make the array of all rows; return None if the general path must check a value.

    bodies: The bodies of the requests.
    values: The values of each request; their number is already checked.
    spec: The spec of the input, for which `is_coalescible` is true.
    rows: The number of rows.
    """
    packers, dtype = PACKERS[spec.datatype]
    lists: Sequence[list[float]] = [one for one in values if one.__class__ is list]
    if lists:
        text = bodies[0] if len(bodies) == 1 else b"".join(bodies)
        if (b"true" in text or b"false" in text) and bool in map(type, chain.from_iterable(lists)):
            return None  # struct would pack booleans as 1 and 0
    shape = (rows, spec.shape[1])  # type: ignore[index]
    try:
        if len(lists) < len(values):
            raw = b"".join(
                [packers[len(one)](*one) if one.__class__ is list else one for one in values]  # type: ignore[misc]
            )
        elif len(lists) == 1:
            raw = packers[len(lists[0])](*lists[0])
        else:
            flat = [*chain.from_iterable(lists)]
            raw = packers[len(flat)](*flat)
        return np.ndarray(shape, dtype, raw)  # type: ignore[arg-type]
    except (PackError, OverflowError, TypeError):
        return None


def nested_texts(array: Array, counts: Sequence[int]) -> list[bytes] | None:
    """Write the rows of each request as a JSON array; None as in `ResponseTemplate.write`."""
    rank = array.ndim
    if (text := _text(array)) is None:
        return None
    if len(counts) == 1:
        return [text] if counts[0] == len(array) else None
    opened, closed = b"[" * rank, b"]" * rank
    between = closed[1:] + b"," + opened[1:]
    if (rows := _rows_of(text, array, between, counts)) is None:
        return None
    return [b"%b%b%b" % (opened, row, closed) for row in rows]


def flat_texts(array: Array, counts: Sequence[int]) -> list[bytes] | None:
    """Write the elements of each request as a JSON list; None as in `ResponseTemplate.write`."""
    if array.ndim > 1 and array.size:
        array = array.reshape(len(array), -1)
    texts = nested_texts(array, counts)
    if texts is None or array.ndim == 1:
        return texts
    if len(counts) == len(array):
        return [text[1:-1] for text in texts]
    return [text[1:-1].replace(b"],[", b",") for text in texts]


def raw_parts(array: Array, counts: Sequence[int]) -> list[bytes] | None:
    """Return the rows of each request as bytes; None if `counts` do not add up to the rows."""
    if not array.ndim or sum(counts) != len(array):
        return None
    ends = [*accumulate(counts, initial=0)]
    raw = array.tobytes()
    size = len(raw) // len(array)
    return [raw[begin * size : end * size] for begin, end in pairwise(ends)]


def _text(array: Array) -> bytes | None:
    if not array.size or not array.ndim or array.dtype not in BY_ITSELF:
        return None
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    return None if b"null" in text else text


def _rows_of(
    text: bytes, array: Array, between: bytes, counts: Sequence[int]
) -> Sequence[bytes] | None:
    """Return the text of each request's rows, without the outer brackets."""
    rank = array.ndim
    rows = text[rank:-rank].split(between)
    if len(rows) == len(counts):
        return rows if len(rows) == len(array) and sum(counts) == len(rows) else None
    ends = [*accumulate(counts, initial=0)]
    if len(rows) != len(array) or ends[-1] != len(rows):
        return None
    return [between.join(rows[begin:end]) for begin, end in pairwise(ends)]
