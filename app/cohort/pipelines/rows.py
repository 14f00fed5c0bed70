"""Tensors of which some rows are there: choosing rows, and putting them together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cohort.errors import InferenceFailed
from cohort.tensors import Array

Rows = NDArray[np.intp] | None
"""Some rows of a request, ascending; None: all of them."""


class Part(NamedTuple):
    """A tensor, and the rows of the request that it holds."""

    array: Array
    rows: Rows = None


def common(one: Rows, other: Rows) -> Rows:
    """The rows that are in both."""
    if one is None or one is other:
        return other
    return one if other is None else np.intersect1d(one, other, assume_unique=True)


def select(part: Part, rows: Rows) -> Array:
    """The array of some rows, which the part has; the very array where it has no others."""
    if rows is None or rows is part.rows:
        return part.array
    if part.rows is None:
        return part.array[rows]
    if len(rows) == len(part.rows):
        return part.array
    return part.array[np.searchsorted(part.rows, rows)]


def first_of(parts: Sequence[Part], total: int, name: str) -> Part:
    """Each row from the first part that has it; the very first part where that has all.

    total: The rows of the request.
    name: What is made of the parts, for messages.

    Raises InferenceFailed where they have different shapes.
    """
    first = parts[0]
    if first.rows is None or len(parts) == 1:
        return first
    tails = {part.array.shape[1:] for part in parts}
    if len(tails) > 1:
        shapes = " and ".join(str(list(one)) for one in sorted(tails, key=str))
        raise InferenceFailed(f"{name}: rows of the shapes {shapes} cannot be put together")
    whole = np.empty((total, *first.array.shape[1:]), first.array.dtype)
    there = np.zeros(total, np.bool_)
    for part in parts:
        rows = np.arange(total) if part.rows is None else part.rows
        new = ~there[rows]
        whole[rows[new]] = part.array[new]
        there[rows] = True
    if there.all():
        return Part(whole)
    rows = np.flatnonzero(there)
    return Part(whole[rows], rows)
