"""Rules of operators that split and join tensors."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.row_independence.arithmetic import extreme
from cohort.row_independence.axes import BY_NUMBER
from cohort.row_independence.evaluation import BEYOND, plain_slice, slices
from cohort.row_independence.operation import Operation, rule
from cohort.row_independence.sizes import Poly, Size, is_whole, least, of_rows, quotient
from cohort.row_independence.tensors import INT64, RowAxis, RowPlace, Tensor, mixes, unknown


@rule("Slice")
def _slice_(operation: Operation) -> Tensor:
    one = operation.first()
    shape, rows = list(one.shape), one.rows
    touched = set()
    for axis, start, end, step in slices(operation, one.rank):
        if not all(isinstance(bound, int | Poly) for bound in (start, end, step)):
            unknown("the cut position is not known")
        touched.add(axis)
        if rows and axis == rows.axis:
            rows, shape[axis] = _slice_rows(operation, rows, shape[axis], start, end, step)
            continue
        whole = start == 0 and end == shape[axis]
        if rows and not whole and any(map(of_rows, (start, end))):
            mixes("the length of the slice follows from the number of rows")
        shape[axis] = _slice_size(operation, shape[axis], start, end, step)
    counts = one.counts or (rows is None and any(map(of_rows, shape)))
    if one.same and counts:
        unknown("the length of the slice follows from the number of rows")
    place = one.place if one.place and one.place.axis not in touched else None
    return Tensor(
        tuple(shape), one.dtype, rows, counts, place=place, below=one.below, padding=one.padding
    )


def _slice_rows(
    operation: Operation, rows: RowAxis, size: Size, start: Size, end: Size, step: Size
) -> tuple[RowAxis, Size]:
    """Slice the row axis into whole repetitions of all rows, the only allowed parts."""
    if step == -1:
        mixes("it reverses the order of the rows")
    part = operation.symbols.rows * rows.inner
    first = quotient(start, part)
    to_end = end == size or (isinstance(end, int) and end >= BEYOND)
    last = rows.outer if to_end else quotient(end, part)
    if (
        step == 1
        and isinstance(first, int)
        and isinstance(last, int)
        and isinstance(rows.outer, int)
        and 0 <= first < last <= rows.outer
    ):
        return rows._replace(outer=last - first), (last - first) * part
    return mixes("it cuts rows off")


def _slice_size(operation: Operation, size: Size, start: Size, end: Size, step: Size) -> Size:
    if all(isinstance(one, int) for one in (size, start, end, step)):
        return len(range(size)[slice(*plain_slice(start, end, step))])  # type: ignore[arg-type]
    beyond = isinstance(end, int) and end >= BEYOND
    if step == 1:
        if start == 0 and (beyond or end == size):
            return size
        low = size + start if isinstance(start, int) and start < 0 else start
        high = size if beyond else size + end if isinstance(end, int) and end < 0 else end
        if least(low) >= 0 and least(size - high) >= 0 and least(high - low) >= 0:
            return high - low
        if start == 0 and least(end) >= 0 and is_whole(end):
            return extreme(1)(operation, size, end)  # type: ignore[no-any-return]
    return operation.symbols.term("cut", size, start, end, step, least=0)


@rule("Split")
def _split(operation: Operation) -> list[Tensor]:
    one = operation.first()
    axis = operation.axis(0, one.rank)
    size, count = one.shape[axis], operation.outputs
    sizes = operation.attribute("split", operation.known_whole(1, "the cut position"))
    if sizes is None and operation.input(1) is not None:
        if one.rows and axis == one.rows.axis:
            unknown("the cut position is not known")
        sizes = [operation.symbols.new() for _ in range(count)]
    if sizes is None:
        sizes = _even(operation, size, count)
    found = []
    for part in sizes:
        rows = one.rows
        if rows and axis == rows.axis:
            outer = quotient(part, operation.symbols.rows * rows.inner)
            if not isinstance(outer, int):
                mixes("it cuts the rows into parts")
            rows = rows._replace(outer=outer)
        elif rows and of_rows(part):
            mixes("the cut position follows from the number of rows")
        shape = (*one.shape[:axis], part, *one.shape[axis + 1 :])
        counts = one.counts or (rows is None and any(map(of_rows, shape)))
        found.append(Tensor(shape, one.dtype, rows, counts, below=one.below))
    return found


def _even(operation: Operation, size: Size, count: int) -> list[Size]:
    if isinstance(size, int):
        chunk = -(-size // count)
        return [*[chunk] * (count - 1), size - chunk * (count - 1)]
    if (exact := quotient(size, count)) is not None:
        return [exact] * count
    return [operation.symbols.term("part", size, count, at, least=0) for at in range(count)]


def joined(given: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate tensors along an axis. Raises Unproven."""
    first = given[0]
    if any(one.rank != first.rank for one in given):
        unknown("values of different numbers of dimensions are joined")
    with_rows = [one for one in given if one.rows]
    rows = with_rows[0].rows if with_rows else None
    if rows is not None:
        if any(one.counts for one in given):
            mixes(BY_NUMBER)
        if len(with_rows) < len(given):
            mixes("rows are joined with a value that does not have the same rows")
        along = axis == rows.axis
        if len({one.rows if not along else one.rows and one.rows[::2] for one in given}) > 1:
            mixes("rows that are laid out in different ways are joined")
        if along:
            rows = rows._replace(outer=sum((one.rows.outer for one in with_rows if one.rows), 0))
    shape = [
        next((size for size in sizes if isinstance(size, int)), sizes[0])
        if len(set(sizes)) > 1 and not any(map(of_rows, sizes))
        else sizes[0]
        for sizes in zip(*(one.shape for one in given), strict=True)
    ]
    shape[axis] = sum((one.shape[axis] for one in given), 0)
    counts = any(one.counts for one in given) or (rows is None and any(map(of_rows, shape)))
    below = first.below if all(one.below == first.below for one in given) else None
    return Tensor(tuple(shape), first.dtype, rows, counts, below=below)


@rule("Concat")
def _concat(operation: Operation) -> Tensor:
    given = operation.present()  # empty tensors are ignored
    given = [one for one in given if not (one.same and one.shape == (0,))] or given
    if len(given) == 1:
        return given[0]
    rank = given[0].rank
    axis = operation.axis(1, rank)
    if axis == rank - 1 and any(_columns(one) for one in given):
        return _index(given)
    return joined(given, axis)


def _columns(one: Tensor) -> tuple[RowPlace | None, ...]:
    if one.columns:
        return one.columns
    return (one.place,) if one.place and one.shape[-1] == 1 else ()


def _index(given: Sequence[Tensor]) -> Tensor:
    """Join columns to an index: row numbers, with columns that have rows along the same axis."""
    shape = next(one.shape for one in given if _columns(one))
    axes = {place.axis for one in given for place in _columns(one) if place}
    if len(axes) > 1 or any(not isinstance(one.shape[-1], int) for one in given):
        unknown("an index with row numbers along several axes")
    (axis,) = axes
    columns: list[RowPlace | None] = []
    for one in given:
        own = _columns(one)
        columns += own or [None] * int(one.shape[-1])  # type: ignore[arg-type]
        if not own and one.rows != (axis, 1, 1):
            mixes("an index joins row numbers with something else")
    shape = (*shape[:-1], len(columns))
    if any(of_rows(size) for at, size in enumerate(shape) if at != axis):
        unknown("an index with the number of rows in other sizes")
    return Tensor(shape, INT64, counts=True, columns=tuple(columns))


@rule("Pad")
def _pad(operation: Operation) -> Tensor:
    one = operation.first()
    what = "the padding width"
    operation.same(2, what="the padding value")
    pads = operation.attribute("pads") or operation.known_whole(1, what)
    axes = operation.axes(3, one.rank) or list(range(one.rank))
    if pads is None:
        unknown(f"{what} is not known")
    shape = list(one.shape)
    for axis, low, high in zip(axes, pads, pads[len(axes) :], strict=False):
        if one.rows and axis == one.rows.axis:
            if (low, high) != (0, 0):
                mixes("it adds rows")
        elif of_rows(low) or of_rows(high):
            mixes(f"{what} follows from the number of rows")
        else:
            total = shape[axis] + low + high
            shape[axis] = (
                total if least(total) >= 0 else operation.symbols.term("pad", total, least=0)
            )
    return Tensor(tuple(shape), one.dtype, one.rows, one.counts)
