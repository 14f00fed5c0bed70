"""Tensors with only some rows of a request: selecting rows, and combining them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cohort.errors import InferenceFailed
from cohort.tensors import Array

Rows = NDArray[np.intp] | None
"""Row numbers of a request, ascending; None: all rows."""


class Part(NamedTuple):
    """A tensor, and the rows of the request that it holds."""

    array: Array
    rows: Rows = None


def common(one: Rows, other: Rows) -> Rows:
    """Return the rows that are in both."""
    if one is None or one is other:
        return other
    return one if other is None else np.intersect1d(one, other, assume_unique=True)


def select(part: Part, rows: Rows) -> Array:
    """Return the array of rows that the part has; the same array if it has no other rows."""
    if rows is None or rows is part.rows:
        return part.array
    if part.rows is None:
        return part.array[rows]
    if len(rows) == len(part.rows):
        return part.array
    return part.array[np.searchsorted(part.rows, rows)]


def first_of(parts: Sequence[Part], total: int, name: str) -> Part:
    """Take each row from the first part that has it; return the first part if it has all rows.

    total: The number of rows of the request.
    name: The name of the combined tensor, for messages.

    Raises InferenceFailed if the parts have different shapes.
    """
    first = parts[0]
    if first.rows is None or len(parts) == 1:
        return first
    tails = {part.array.shape[1:] for part in parts}
    if len(tails) > 1:
        shapes = " and ".join(str(list(one)) for one in sorted(tails, key=str))
        raise InferenceFailed(f"{name}: rows of the shapes {shapes} cannot be joined")
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
