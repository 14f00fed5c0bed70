"""Rules of operators that create tensors or repeat their entries."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import numpy as np

from cohort.row_independence.axes import FIXED, join_sizes
from cohort.row_independence.operation import Operation, rule
from cohort.row_independence.sizes import Size, is_whole, least, of_rows, product, quotient
from cohort.row_independence.tensors import (
    FLOAT,
    INT64,
    MAX_FOLLOWED,
    STRING,
    RowAxis,
    RowPlace,
    Tensor,
    constant,
    mixes,
    sized,
    unknown,
)


@rule("Constant")
def _given(operation: Operation) -> Tensor:
    for name, value in operation.attributes.items():
        match value:
            case Tensor():
                return value
            case str():
                return sized([], STRING)
            case int() | float():
                return constant(value, FLOAT if name.startswith("value_float") else INT64)
            case list() if value and isinstance(value[0], str):
                return sized([len(value)], STRING)
            case list() | tuple():
                return constant(value, FLOAT if name.startswith("value_float") else INT64)
    return unknown("it has no value that is known")


@rule("Shape")
def _shape_of(operation: Operation) -> Tensor:
    start, end = operation.attribute("start", 0), operation.attribute("end")
    return constant(operation.first().shape[slice(start, end)], INT64)


@rule("Size")
def _size_of(operation: Operation) -> Tensor:
    return constant(product(operation.first().shape), INT64)


@rule("ConstantOfShape")
def _filled(operation: Operation) -> Tensor:
    value = operation.attribute("value")
    shape = sizes_in(operation, 0, "its shape", rank=length_of(operation, 0))
    dtype = FLOAT if value is None else value.dtype
    if any(map(of_rows, shape)):
        return repeated(operation, sized(shape, dtype))
    count = product(shape)
    if not isinstance(count, int) or not 0 <= count <= MAX_FOLLOWED:
        return sized(shape, dtype)
    if value is None:
        return constant(np.full(shape, 0.0, dtype=object), dtype)
    if value.elements is None:
        return sized(shape, dtype)
    return constant(np.full(shape, value.elements.item(), dtype=object), dtype)


@rule("Range")
def _numbers(operation: Operation) -> Tensor:
    what = "where it starts or ends"
    start, end, step = (operation.known(place, what) for place in range(3))
    dtype = operation.first().dtype
    if start is None or end is None or step is None:
        return sized([operation.symbols.new()], dtype)
    first, last, by = start[0], end[0], step[0]
    if first == 0 and by == 1 and is_whole(last) and least(last) >= 0:
        size = int(last) if isinstance(last, float) else last
        place = RowPlace(0) if size == operation.symbols.rows else None
        return replace(sized([size], dtype), below=size, place=place)
    return sized([operation.symbols.term("range", first, last, by, least=0)], dtype)


def length_of(operation: Operation, place: int) -> int:
    """Return the number of elements of a list input."""
    size = operation.required(place).shape
    if len(size) != 1 or not isinstance(size[0], int):
        unknown("the rank of its result is not known")
    return size[0]


def sizes_in(operation: Operation, place: int, what: str, rank: int) -> tuple[Size, ...]:
    """Return the sizes in an input; an element that may not be a size becomes a new symbol."""
    found = operation.known_whole(place, what)
    if found is None:
        return tuple(operation.symbols.new() for _ in range(rank))
    return tuple(_size(operation, one) for one in found)


def _size(operation: Operation, one: Size) -> Size:
    if least(one) >= 0 or of_rows(one):
        return one
    return operation.symbols.new()


def repeated(operation: Operation, one: Tensor) -> Tensor:
    """Mark the axis that repeats the same entries for each row as the row axis."""
    grown = [at for at, size in enumerate(one.shape) if of_rows(size)]
    inner = quotient(one.shape[grown[0]], operation.symbols.rows)
    if len(grown) > 1 or inner is None or of_rows(inner):
        return replace(one, counts=True)
    return replace(one, counts=False, rows=RowAxis(grown[0], 1, inner))


@rule("Expand")
def _expand(operation: Operation) -> Tensor:
    one = operation.first()
    wanted = sizes_in(operation, 1, "the new shape", length_of(operation, 1))
    rank = max(len(wanted), one.rank)
    more = rank - one.rank
    sizes = [*[1] * more, *one.shape]
    wanted = (*[1] * (rank - len(wanted)), *wanted)
    shape: list[Size] = []
    for at, (size, want) in enumerate(zip(sizes, wanted, strict=True)):
        if one.rows and at == one.rows.axis + more:
            if want not in (1, size):
                _no_such_rows(want)
            shape.append(size)
        elif of_rows(want) and size not in (1, want):
            unknown("a size and the number of rows meet")
        else:
            shape.append(join_sizes(operation, size, want))

    def shifted(place: RowPlace | None) -> RowPlace | None:
        return place and place._replace(axis=place.axis + more)

    columns = tuple(map(shifted, one.columns)) if shape[-1:] == list(one.shape[-1:]) else ()
    found = replace(
        one, shape=tuple(shape), elements=None, place=shifted(one.place), columns=columns
    )  # fmt: skip
    grown = [at for at, size in enumerate(shape) if of_rows(size) and size != sizes[at]]
    if one.rows:
        if grown:
            mixes("every row is repeated for each row")
        return replace(found, rows=one.rows._replace(axis=one.rows.axis + more))
    return repeated(operation, found) if grown and one.same else found


def _no_such_rows(wanted: Size) -> NoReturn:
    if isinstance(wanted, int):
        mixes(FIXED)
    unknown("rows may be repeated")


@rule("Tile")
def _tile(operation: Operation) -> Tensor:
    one = operation.first()
    times = sizes_in(operation, 1, "the number of repeats", one.rank)
    if len(times) != one.rank:
        unknown("the number of repeats is not known")
    shape = tuple(size * count for size, count in zip(one.shape, times, strict=True))
    found = Tensor(shape, one.dtype, one.rows, one.counts)
    grown = any(map(of_rows, times))
    if not one.rows:
        if grown and one.counts:
            unknown("it repeats numbers of rows")
        return repeated(operation, found) if grown else found
    if grown:
        mixes("every row is repeated for each row")
    axis, outer, inner = one.rows
    return replace(found, rows=RowAxis(axis, times[axis] * outer, inner))
