"""Items of tensors, such as the boxes in each image: conversion to rows of a step and back.

A tensor [N, items, …] is [N · items, …] inside the step. Outputs of the step are [N, items, …]
again, so the position identifies an item. Items are copied only if a condition excludes some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cohort.errors import InferenceFailed, InvalidInput, quoted, quoted_names
from cohort.pipelines.conditions import Condition
from cohort.pipelines.rows import Rows
from cohort.tensors import Array, Arrays, TensorSpec

MAX_ITEMS = 4096
"""Maximum number of items that a step runs for in one request."""

MAX_NUMBERS = 16 << 20
"""Maximum number of values in a tensor that is repeated for items, or filled for left-out items."""


class Each(NamedTuple):
    """The tensors and inputs of a step that have items.

    tensors: The tensors that have items.
    inputs: The inputs from these tensors; rows of other inputs are repeated for each item.
    axes: Number of axes that items are along. 2: rows of the request, and items of each. 1: items
        of the only row, along axis 0.
    """

    tensors: Sequence[str]
    inputs: frozenset[str]
    axes: int


class Items(NamedTuple):
    """The items that a step runs for.

    lengths: The lengths of the axes that items are along.
    chosen: The positions of the chosen items, ascending; None: all items.
    """

    lengths: tuple[int, ...]
    chosen: Rows

    @property
    def rows(self) -> int:
        """Return the number of rows of the step."""
        return prod(self.lengths) if self.chosen is None else len(self.chosen)


def repeated_bytes(each: Each, inputs: Arrays, looked_at: Mapping[str, Array]) -> int:
    """Return the bytes of inputs repeated for items, if no condition leaves some out."""
    arrays = [*inputs.items(), *looked_at.items()]
    alone = [a for n, a in arrays if n not in each.inputs and n not in each.tensors and a.ndim]
    if not alone:
        return 0
    items = max(prod(a.shape[: each.axes]) for n, a in inputs.items() if n in each.inputs)
    return items * sum([array.nbytes // max(len(array), 1) for array in alone])


def fan_out(
    each: Each, inputs: Arrays, looked_at: Mapping[str, Array], condition: Condition | None
) -> tuple[Items, Arrays]:
    """Return the items that a step runs for, and its inputs with one row per item.

    inputs: The inputs by name, for the rows of the request.
    looked_at: The tensors that the condition reads.

    Raises InvalidInput if there are too many items, or if tensors have different items. Raises
    InferenceFailed if the condition cannot be evaluated.
    """
    having = {name: array for name, array in inputs.items() if name in each.inputs}
    having |= {name: looked_at[name] for name in looked_at if name in each.tensors}
    lengths = _lengths(having, each.axes)
    chosen: Rows = None
    total = prod(lengths)
    if condition is not None and total:
        values = {
            name: _flat(array, lengths) if name in each.tensors else _repeated(name, array, lengths)
            for name, array in looked_at.items()
        }
        holds = condition.holds(values, by_rows=True)
        if holds.shape != (total,):
            raise InferenceFailed("its condition does not have a value for each item")
        chosen = None if holds.all() else np.flatnonzero(holds)
    items = Items(lengths, chosen)
    if items.rows > MAX_ITEMS:
        raise InvalidInput(
            f"it would run for {items.rows} items of {quoted_names(each.tensors)}: at most "
            f"{MAX_ITEMS} in a request; exclude some with a condition"
        )
    made: Arrays = {}
    for name, array in inputs.items():
        if name in each.inputs:
            flat = _flat(array, lengths)
            made[name] = flat if chosen is None else flat[chosen]
        else:
            made[name] = _repeated(name, array, lengths, chosen)
    return items, made


def _lengths(having: Arrays, axes: int) -> tuple[int, ...]:
    found: tuple[int, ...] | None = None
    first = ""
    for name, array in having.items():
        if array.ndim < axes:
            raise InvalidInput(
                f"{quoted(name)} has shape {list(array.shape)}, without items along axis {axes - 1}"
            )
        if found is None:
            found, first = array.shape[:axes], name
        elif array.shape[:axes] != found:
            raise InvalidInput(
                f"{quoted(first)} and {quoted(name)} have different items: "
                f"{list(having[first].shape)} and {list(array.shape)}"
            )
    return found or ()


def _flat(array: Array, lengths: tuple[int, ...]) -> Array:
    return array.reshape(prod(lengths), *array.shape[len(lengths) :])


def _repeated(name: str, array: Array, lengths: tuple[int, ...], chosen: Rows = None) -> Array:
    """Repeat each row of the request for its items."""
    rows, each = lengths if len(lengths) == 2 else (1, lengths[0])
    if not array.ndim or len(array) != rows:
        raise InvalidInput(
            f"{quoted(name)} has shape {list(array.shape)}, where items are of {rows} "
            f"{'row' if rows == 1 else 'rows'}"
        )
    count = rows * each if chosen is None else len(chosen)
    if count * prod(array.shape[1:]) > MAX_NUMBERS:
        raise InvalidInput(
            f"{quoted(name)} would be repeated for {count} items, which are more than "
            f"{MAX_NUMBERS >> 20} Mi numbers; use a model that takes it once, with all items"
        )
    places: NDArray[np.intp] = np.arange(rows * each) if chosen is None else chosen
    return array if each == 1 and chosen is None else array[places // each if each else places]


def fan_in(items: Items, outputs: Sequence[Array], specs: Sequence[TensorSpec]) -> list[Array]:
    """Put the outputs of a step in the places of its items; zeros or "" for items left out.

    Raises InferenceFailed if an output does not have a row for each item.
    """
    return [_placed(items, array, spec) for array, spec in zip(outputs, specs, strict=True)]


def _placed(items: Items, array: Array, spec: TensorSpec) -> Array:
    if not array.ndim or len(array) != items.rows:
        raise InferenceFailed(
            f"output {quoted(spec.name)} has shape {list(array.shape)} for {items.rows} items"
        )
    tail = array.shape[1:]
    if items.chosen is None:
        return array.reshape(*items.lengths, *tail)
    total = prod(items.lengths)
    if total * prod(tail) > MAX_NUMBERS:
        raise InferenceFailed(
            f"output {quoted(spec.name)} of {total} items would be more than "
            f"{MAX_NUMBERS >> 20} Mi numbers; have fewer items"
        )
    whole: Array = np.full((total, *tail), "" if array.dtype.kind == "O" else 0, array.dtype)
    whole[items.chosen] = array
    return whole.reshape(*items.lengths, *tail)


def none_of(spec: TensorSpec) -> Array:
    """Return an output without rows; lengths that the model leaves open are 0."""
    lengths = [size if isinstance(size, int) else 0 for size in (spec.shape or ())[1:]]
    return np.empty((0, *lengths), spec.dtype)
