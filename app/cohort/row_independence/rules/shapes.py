"""Rules of operators that change only the shape or order of a tensor's entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cohort.row_independence.axes import FIXED, follow
from cohort.row_independence.evaluation import EXACT
from cohort.row_independence.operation import Operation, normalized, rule
from cohort.row_independence.rules.origins import length_of, sizes_in
from cohort.row_independence.sizes import Size, least, of_rows, product, quotient
from cohort.row_independence.tensors import RowAxis, RowPlace, Tensor, mixes, sized, unknown


def moved(
    operation: Operation, labels: Sequence[str], result: Sequence[str], sizes: Any = None
) -> Tensor:
    """Return the first input with its axes reordered, added or removed. Raises Unproven.

    Values are unchanged, so indices remain indices.
    """
    one = operation.first()
    (found,) = follow(
        operation, [(replace(one, elements=None), labels)], [result], sizes=sizes,
        why="it removes the dimension of rows: only one row can be run",
    )  # fmt: skip
    place = None
    if one.place is not None and labels[one.place.axis] in result:
        place = one.place._replace(axis=list(result).index(labels[one.place.axis]))
    return replace(found, place=place, below=one.below, padding=one.padding)


def _axes(tensor: Tensor) -> list[str]:
    return [f"A{at}" for at in range(tensor.rank)]


def reshaped(operation: Operation, shape: Sequence[Size | None]) -> Tensor:
    """Return the first input in another shape; None is the remaining size. Raises Unproven."""
    one = operation.first()
    sizes = list(shape)
    if sizes.count(None) == 1:
        at = sizes.index(None)
        others = product(size for size in sizes if size is not None)
        sizes[at] = quotient(product(one.shape), others)
    known = [operation.symbols.new() if size is None else size for size in sizes]
    if one.rows is None:
        if one.same and any(map(of_rows, known)):
            mixes("a value without rows is given the number of rows as a size")
        if one.counts and None in sizes:
            unknown("sizes that follow from the number of rows are not understood")
        if one.counts and product(known) != product(one.shape):
            mixes(FIXED)
        found = Tensor(tuple(known), one.dtype, counts=one.counts, below=one.below)
        return replace(found, place=_place_after(one, found))
    rows = _rows_after(operation, one, one.rows, sizes)
    if any(of_rows(size) for at, size in enumerate(known) if at != rows.axis):
        mixes("the number of rows becomes part of another size")
    return Tensor(tuple(known), one.dtype, rows, below=one.below, padding=one.padding)


def _rows_after(
    operation: Operation, one: Tensor, rows: RowAxis, sizes: Sequence[Size | None]
) -> RowAxis:
    """Locate the rows in another shape; the numbers of entries before and after them are kept."""
    before = product([*one.shape[: rows.axis], rows.outer])
    after = product([rows.inner, *one.shape[rows.axis + 1 :]])
    for axis, size in enumerate(sizes):
        each = (
            quotient(size, operation.symbols.rows) if size is not None and of_rows(size) else None
        )
        if each is None or of_rows(each):
            continue
        outer, inner = _left(before, sizes[:axis]), _left(after, sizes[axis + 1 :])
        if outer is not None and (rest := quotient(each, outer)) is not None:
            return RowAxis(axis, outer, rest)
        if inner is not None and (rest := quotient(each, inner)) is not None:
            return RowAxis(axis, rest, inner)
    if None in sizes and not any(map(of_rows, sizes)):
        unknown("it reshapes the rows in a way that is not understood")
    if not any(map(of_rows, sizes)):
        mixes("its sizes are those of one row")
    return mixes("it reshapes values of several rows together")


def _left(entries: Size, sizes: Sequence[Size | None]) -> Size | None:
    """Return entries divided by sizes; None if a size is unknown or does not divide them."""
    if None in sizes:
        return None
    return quotient(entries, product(size for size in sizes if size is not None))


def _place_after(one: Tensor, found: Tensor) -> RowPlace | None:
    """Locate the row numbers in another shape; None if their axis was merged or split."""
    if one.place is None:
        return None
    at = one.place.axis
    for axis, size in enumerate(found.shape):
        if size == one.shape[at] and product(found.shape[:axis]) == product(one.shape[:at]):
            return one.place._replace(axis=axis)
    return None


@rule("Reshape")
def _reshape(operation: Operation) -> Tensor:
    one = operation.first()
    what = "the new shape"
    if operation.version < 5:
        wanted = operation.attribute("shape")
    else:
        wanted = operation.known_whole(1, what)
    if wanted is None:
        if not one.same:
            unknown(f"{what} is not known")
        return sized(sizes_in(operation, 1, what, length_of(operation, 1)), one.dtype)
    sizes: list[Size | None] = []
    for at, size in enumerate(wanted):
        if size == 0 and not operation.attribute("allowzero", 0):
            sizes.append(one.shape[at] if at < one.rank else unknown("it copies a missing size"))
        elif size == -1:
            sizes.append(None)
        elif least(size) >= 0:
            sizes.append(size)
        elif of_rows(size):
            unknown(f"{what} follows from the number of rows in a way that is not understood")
        else:  # the symbol may stand for -1 or 0
            sizes.append(operation.symbols.new())
    return reshaped(operation, sizes)


@rule("Flatten")
def _flatten(operation: Operation) -> Tensor:
    one = operation.first()
    axis = operation.attribute("axis", 1)
    axis += one.rank if axis < 0 else 0
    return reshaped(operation, [product(one.shape[:axis]), product(one.shape[axis:])])


@rule("Squeeze")
def _squeeze(operation: Operation) -> Tensor:
    one = operation.first()
    axes = operation.axes(1, one.rank)
    if not axes:  # ONNX Runtime treats an empty list as omitted axes
        if one.rows:
            mixes("it removes the dimension of rows if there is one row")
        if not all(isinstance(size, int) for size in one.shape):
            unknown("it removes dimensions of unknown size")
        axes = [at for at, size in enumerate(one.shape) if size == 1]
    if any(of_rows(one.shape[at]) for at in axes if one.counts):
        mixes(FIXED)
    labels = _axes(one)
    return moved(operation, labels, [label for at, label in enumerate(labels) if at not in axes])


@rule("Unsqueeze")
def _unsqueeze(operation: Operation) -> Tensor:
    one = operation.first()
    count = len(operation.attribute("axes", operation.known(1, "which axes it adds") or []))
    added = operation.axes(1, one.rank + count)
    if not added:
        unknown("the list of axes is not known")
    labels = iter(_axes(one))
    result = ["1" if at in added else next(labels) for at in range(one.rank + count)]
    found = moved(operation, _axes(one), result)
    return replace(found, columns=(found.place,)) if result[-1] == "1" and found.place else found


@rule("Transpose")
def _transpose(operation: Operation) -> Tensor:
    labels = _axes(operation.first())
    order = operation.attribute("perm") or range(len(labels))[::-1]
    return moved(operation, labels, [labels[normalized(at, len(labels))] for at in order])


@rule("Identity")
def _identity(operation: Operation) -> Tensor:
    return operation.first()


@rule("Cast", "CastLike")
def _cast(operation: Operation) -> Tensor:
    labels = _axes(operation.first())
    to = operation.attribute("to", 0)
    if operation.name == "CastLike":
        to = operation.required(1).dtype
    found = replace(moved(operation, labels, labels), dtype=to, columns=operation.first().columns)
    return found if to in EXACT else replace(found, place=None, below=None, columns=())
