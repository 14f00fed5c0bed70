"""Items of tensors, such as the boxes of each picture: they become rows of a step, and go back.

A tensor [N, items, …] is [N · items, …] inside the step, and what the step gives is [N, items, …]
again: an item is known by its place. Neither copies anything, unless a condition leaves some out.
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
"""Items that a step runs for in one request."""

MAX_NUMBERS = 16 << 20
"""Numbers of a tensor that is made of items, or repeated for each."""


class Each(NamedTuple):
    """What of a step is given item by item.

    tensors: The tensors that have items.
    inputs: The inputs that are from these; each row of any other one is repeated for its items.
    axes: The axes that items are along: 2, the rows of the request and an axis more; or 1, where
        there is one row, and a tensor has its items along axis 0.
    """

    tensors: Sequence[str]
    inputs: frozenset[str]
    axes: int


class Items(NamedTuple):
    """The items that a step runs for.

    lengths: Those of the axes that they are along.
    chosen: Their places, ascending; None: all of them.
    """

    lengths: tuple[int, ...]
    chosen: Rows

    @property
    def rows(self) -> int:
        """How many rows the step has."""
        return prod(self.lengths) if self.chosen is None else len(self.chosen)


def repeated_bytes(each: Each, inputs: Arrays, looked_at: Mapping[str, Array]) -> int:
    """The bytes of what is repeated for items, where no condition leaves some out."""
    arrays = [*inputs.items(), *looked_at.items()]
    alone = [a for n, a in arrays if n not in each.inputs and n not in each.tensors and a.ndim]
    if not alone:
        return 0
    items = max(prod(a.shape[: each.axes]) for n, a in inputs.items() if n in each.inputs)
    return items * sum([array.nbytes // max(len(array), 1) for array in alone])


def fan_out(
    each: Each, inputs: Arrays, looked_at: Mapping[str, Array], condition: Condition | None
) -> tuple[Items, Arrays]:
    """The items for which a step runs, and its inputs: a row for each.

    inputs: The inputs by name, of the rows of the request.
    looked_at: The tensors of its condition.

    Raises InvalidInput for more items than may be, and where tensors do not fit each other.
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
            f"{MAX_ITEMS} in a request; leave some out by a condition"
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
    """An array of the request's rows with the row of each item."""
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
    """What a step gave for its items, in their places; zeros, or "", for those left out.

    Raises InferenceFailed where it did not give a row for each.
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
    """An output of no rows; a length that the model does not tell is 0."""
    lengths = [size if isinstance(size, int) else 0 for size in (spec.shape or ())[1:]]
    return np.empty((0, *lengths), spec.dtype)
