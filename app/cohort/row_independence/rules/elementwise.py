"""Rules of operators that compute each entry from the entries at the same position."""

from __future__ import annotations

from dataclasses import replace

from cohort.row_independence.axes import any_axes, follow, join_sizes
from cohort.row_independence.operation import MICROSOFT, Operation, rule
from cohort.row_independence.sizes import Poly, Size, least, of_rows
from cohort.row_independence.tensors import BOOL, RowPlace, Tensor

TRUTHS = frozenset(
    {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor"}
)


def combined(operation: Operation, given: list[Tensor], dtype: int) -> Tensor:
    """Return the result of an elementwise operator on broadcast tensors. Raises Unproven."""
    rank = max(one.rank for one in given)
    labels = [f"A{at}" for at in range(rank)]
    (found,) = follow(
        operation,
        [(one, any_axes(one, rank)) for one in given],
        [labels],
        dtypes=[dtype],
        broadcast=True,
    )
    return found


@rule(
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Sum", "Mean", "PRelu"),
    *("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "StringConcat", *TRUTHS),
)
@rule("Gelu", "FastGelu", "QuickGelu", "BiasGelu", domain=MICROSOFT)
def _combine(operation: Operation) -> Tensor:
    given = operation.present()
    if found := _place(operation, given):
        return found
    return combined(operation, given, BOOL if operation.name in TRUTHS else given[0].dtype)


@rule("Where")
def _where(operation: Operation) -> Tensor:
    return combined(operation, operation.present(), operation.required(1).dtype)


def _place(operation: Operation, given: list[Tensor]) -> Tensor | None:
    """Recognize row numbers times a stride, and the addition of less than a stride to them.

    Such values are positions in merged rows.
    """
    if len(given) != 2:
        return None
    for one, other in (given, given[::-1]):
        place = one.place
        if place is None or place.full:
            continue
        if operation.name == "Mul" and place.stride == 1:
            factor = _single(other)
            if factor is not None and other.rank <= one.rank and least(factor) >= 0:
                return replace(one, place=place._replace(stride=factor), below=None, columns=())
        if operation.name == "Add" and other.below is not None and other.below == place.stride:
            return _offset(operation, one, place, other)
    return None


def _single(one: Tensor) -> Size | None:
    if one.elements is None or one.elements.size != 1:
        return None
    factor = one.elements.item()
    return factor if isinstance(factor, int | Poly) and not of_rows(factor) else None


def _offset(operation: Operation, one: Tensor, place: RowPlace, other: Tensor) -> Tensor | None:
    """Add `other` to row numbers times a stride; None unless both belong to the same row."""
    rank = max(one.rank, other.rank)
    axis = place.axis + rank - one.rank
    own = axis - (rank - other.rank)
    if other.rows is not None:
        if other.rows != (own, 1, 1):
            return None
    elif not other.same or (own >= 0 and other.shape[own] != 1):
        return None
    shapes = [(*[1] * (rank - each.rank), *each.shape) for each in (one, other)]
    shape = tuple(join_sizes(operation, *sizes) for sizes in zip(*shapes, strict=True))
    if any(of_rows(size) for at, size in enumerate(shape) if at != axis):
        return None
    return Tensor(shape, one.dtype, counts=True, place=RowPlace(axis, place.stride, full=True))
