"""Small requests of rows: packed into one array, and answered from one array.

A small request costs more to take apart than its numbers cost to pack, and a response more to write
than its rows. So the usual kind, a few rows of numbers for a model with one input, has a way that
does per request only what differs between requests. Whatever is not of that kind gives None here,
and goes the long way, whose arrays and responses these equal to the last byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from struct import error as PackError  # noqa: N812 - it is an exception, whatever its name says
from typing import Any

import numpy as np
import orjson

from cohort.codec.json_outputs import BY_ITSELF
from cohort.codec.json_tensors import PACKERS
from cohort.codec.templates import ResponseTemplate
from cohort.tensors import Array, TensorSpec

LONGEST_BODY = 4096
"""Bytes; a longer one is no longer mostly overhead."""

Values = list[float] | bytes
"""The numbers of some rows one after the other: as JSON has them, or as the model does."""

Asked = str | tuple[str | None, str] | None
"""What is to answer: a model, or a model and its version; None: no model is named."""


@dataclass(slots=True)
class RowRequest:
    """What a body asks for: an answer to rows of numbers.

    body, document: The body as it came and parsed; the document is None where it was not parsed.
    asked: What is to answer.
    name, datatype: The input's; None where the body does not say.
    values: The numbers.
    rows: How many rows they are.
    template: How the response is written.
    id: What its caller calls it; None: nothing.
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
    """The numbers of a list of equally long lists, and how many lists; None for anything else."""
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
    """Whether a model takes rows of so many numbers and gives arrays that JSON writes as is."""
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


def pack_rows(
    bodies: Sequence[bytes], values: Sequence[Values], spec: TensorSpec, rows: int
) -> Array | None:
    """Make the array of all rows; None where any value is in doubt.

    bodies: What the values were read from.
    values: Those of each request, whose number is right.
    spec: The input's, of which `is_coalescible` is true.
    rows: How many rows they are.
    """
    packers, dtype = PACKERS[spec.datatype]
    lists: Sequence[list[float]] = [one for one in values if one.__class__ is list]
    if lists:
        text = bodies[0] if len(bodies) == 1 else b"".join(bodies)
        if (b"true" in text or b"false" in text) and bool in map(type, chain.from_iterable(lists)):
            return None  # they pack as 1 and 0
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
    """Write the rows of each request as an array in JSON; None as `ResponseTemplate.write`."""
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
    """Write the elements of each request as a list in JSON; None as `ResponseTemplate.write`."""
    if array.ndim > 1 and array.size:
        array = array.reshape(len(array), -1)
    texts = nested_texts(array, counts)
    if texts is None or array.ndim == 1:
        return texts
    if len(counts) == len(array):
        return [text[1:-1] for text in texts]
    return [text[1:-1].replace(b"],[", b",") for text in texts]


def raw_parts(array: Array, counts: Sequence[int]) -> list[bytes] | None:
    """The rows of each request as bytes; None where there are not as many."""
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
    """The text of each request's rows, without brackets at its ends."""
    rank = array.ndim
    rows = text[rank:-rank].split(between)
    if len(rows) == len(counts):
        return rows if len(rows) == len(array) and sum(counts) == len(rows) else None
    ends = [*accumulate(counts, initial=0)]
    if len(rows) != len(array) or ends[-1] != len(rows):
        return None
    return [between.join(rows[begin:end]) for begin, end in pairwise(ends)]
