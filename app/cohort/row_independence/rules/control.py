"""Rules of operators with subgraphs, and of tensor sequences of known length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cohort.row_independence.operation import Operation, normalized, rule
from cohort.row_independence.rules.parts import joined
from cohort.row_independence.sizes import Atom, Poly, Size, made_of, of_rows
from cohort.row_independence.tensors import (
    BOOL,
    INT64,
    Followed,
    Loss,
    Lost,
    RowAxis,
    Tensor,
    TensorSequence,
    Unproven,
    mixes,
    unknown,
    without_elements,
)

MAX_TURNS = 8
"""Maximum number of loop iterations until the carried shapes must be stable."""


def _tensor(value: Followed) -> Tensor:
    match value:
        case Tensor(padding=None):
            return value
        case Lost():
            raise Unproven(value.level, value.reason)
    return unknown("its state has a sequence or padded texts")


@rule("If")
def _choose(operation: Operation) -> list[Followed]:
    condition = operation.first()
    if condition.rows:
        mixes("values in the rows choose one branch for the whole run")
    found = operation.elements(condition)
    taken = None if found is None or found.size != 1 else found.item()
    if isinstance(taken, int):
        return operation.walk.graph(operation.graph("then_branch" if taken else "else_branch"), [])
    if condition.counts:
        mixes("the number of rows chooses the branch")
    then, other = (
        operation.walk.graph(operation.graph(name), []) for name in ("then_branch", "else_branch")
    )
    return [_either(operation, one, two) for one, two in zip(then, other, strict=True)]


def _either(operation: Operation, one: Followed, other: Followed) -> Followed:
    """Return the common facts about two values; the same one is chosen for all rows."""
    if isinstance(one, Lost) or isinstance(other, Lost):
        return one if isinstance(one, Lost) else other
    first, second = _tensor(one), _tensor(other)
    if first.rank != second.rank or first.rows != second.rows:
        return operation.walk.lost(Loss.UNKNOWN, "its branches give rows in different ways")
    if first == second and first.elements is None:
        return first
    shape = []
    for size, another in zip(first.shape, second.shape, strict=True):
        if size != another and (of_rows(size) or of_rows(another)):
            return operation.walk.lost(Loss.UNKNOWN, "its branches give different numbers of rows")
        shape.append(size if size == another else operation.symbols.new())
    return Tensor(tuple(shape), first.dtype, first.rows, first.counts or second.counts)


class _Carried:
    """The values that a loop carries between iterations, until their shapes are stable.

    Sizes that change become new symbols. Sizes computed from these symbols are unknown after the
    loop.
    """

    def __init__(self, operation: Operation, values: Sequence[Tensor]) -> None:
        self._operation = operation
        self.values = [
            replace(without_elements(one) if one.same else one, by_values=True) for one in values
        ]
        self._marks: set[Atom] = set()

    def update(self, after: Sequence[Followed]) -> bool:
        """Update the values after one more iteration. Return True if no shape changed."""
        before = self.values
        self.values = [
            self._widen(one, _tensor(two)) for one, two in zip(before, after, strict=False)
        ]
        return all(one.shape == two.shape for one, two in zip(before, self.values, strict=True))

    def _widen(self, one: Tensor, other: Tensor) -> Tensor:
        if one.rank != other.rank or one.rows != other.rows or one.counts != other.counts:
            unknown("its state changes its rank or its rows")
        if one.counts:
            unknown("its state depends on the number of rows")
        shape = []
        for size, another in zip(one.shape, other.shape, strict=True):
            marked = isinstance(size, Poly) and not self._marks.isdisjoint(size.atoms())
            if size == another or (marked and len(size.terms) == 1):  # type: ignore[union-attr]
                shape.append(size)
            elif of_rows(size) or of_rows(another):
                unknown("it changes the number of rows")
            else:
                mark = self._operation.symbols.new()
                self._marks |= set(mark.atoms())
                shape.append(mark)
        return Tensor(tuple(shape), one.dtype, one.rows, by_values=True)

    def renew(self, value: Followed) -> Followed:
        """Return a value after the loop, with new symbols for sizes that changed in the loop."""
        if not isinstance(value, Tensor):
            return value
        marks = frozenset(self._marks)
        shape = [
            self._operation.symbols.new() if made_of(size, marks) else size for size in value.shape
        ]
        return Tensor(tuple(shape), value.dtype, value.rows, value.counts)


def _stacked(value: Followed, axis: int, size: Size) -> Followed:
    """Stack the values of all iterations along a new axis."""
    if not isinstance(value, Tensor):
        return value
    at = normalized(axis, value.rank + 1)
    rows = value.rows and value.rows._replace(axis=value.rows.axis + (at <= value.rows.axis))
    shape = (*value.shape[:at], size, *value.shape[at:])
    return Tensor(shape, value.dtype, rows, value.counts)


@rule("Loop")
def _loop(operation: Operation) -> list[Followed]:
    for place, what in ((0, "the number of iterations"), (1, "its condition")):
        operation.same(place, what=what)
    body = operation.graph("body")
    carried = _Carried(operation, [_tensor(one) for one in operation.values[2:] if one is not None])
    number, going = Tensor((), INT64), Tensor((), BOOL)
    for _ in range(MAX_TURNS):
        ends, *after = operation.walk.graph(body, [number, going, *carried.values])
        end = _tensor(ends)
        if end.by_values:
            operation.walk.note_dependence("when Loop ends depends on input values")
        if end.rows:
            mixes("it repeats until all rows have ended")
        if end.counts:
            mixes("the number of iterations depends on the number of rows")
        if carried.update(after):
            break
    else:
        unknown("the shapes of its state do not become stable")
    turns = operation.symbols.new()
    count = len(carried.values)
    finals = [carried.renew(one) for one in carried.values]
    return [*finals, *(_stacked(carried.renew(one), 0, turns) for one in after[count:])]


@rule("Scan")
def _scan(operation: Operation) -> list[Followed]:
    if operation.version < 9:
        unknown("its operator set is older than 9")
    count = operation.attribute("num_scan_inputs", 0)
    given = [_tensor(one) for one in operation.values if one is not None]
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    axes = operation.attribute("scan_input_axes") or [0] * count
    slices, length = [], operation.symbols.new()
    for one, axis in zip(scanned, axes, strict=True):
        at = normalized(axis, one.rank)
        rows = one.rows
        if rows and rows.axis == at:
            mixes("it processes the rows one after the other")
        length = one.shape[at]  # type: ignore[assignment]
        shape = (*one.shape[:at], *one.shape[at + 1 :])
        rows = rows and rows._replace(axis=rows.axis - (at < rows.axis))
        slices.append(Tensor(shape, one.dtype, rows, one.counts))
    carried = _Carried(operation, states)
    for _ in range(MAX_TURNS):
        after = operation.walk.graph(operation.graph("body"), [*carried.values, *slices])
        if carried.update(after):
            break
    else:
        unknown("the shapes of its state do not become stable")
    outputs = after[len(states) :]
    result_axes = operation.attribute("scan_output_axes") or [0] * len(outputs)
    finals = [carried.renew(one) for one in carried.values]
    return [
        *finals,
        *(
            _stacked(carried.renew(one), axis, length)
            for one, axis in zip(outputs, result_axes, strict=True)
        ),
    ]


# --- Sequences.


@rule("SequenceConstruct")
def _gather_up(operation: Operation) -> TensorSequence:
    return TensorSequence(operation.present())


@rule("SplitToSequence")
def _take_apart(operation: Operation) -> TensorSequence:
    one = operation.first()
    axis = operation.axis(0, one.rank)
    if one.rows and axis == one.rows.axis:
        mixes("it splits the rows into a sequence")
    size, parts = one.shape[axis], operation.known_numbers(1, "the cut position")
    if not isinstance(size, int) or (parts is None and operation.input(1) is not None):
        unknown("the length of the sequence is not known")
    keep = True
    if parts is None:
        parts, keep = [1] * size, bool(operation.attribute("keepdims", 1))
    elif operation.required(1).rank == 0:
        parts = [min(parts[0], size - at) for at in range(0, size, max(parts[0], 1))]
    found = []
    for part in parts:
        middle: tuple[Size, ...] = (part,) if keep else ()
        shape = (*one.shape[:axis], *middle, *one.shape[axis + 1 :])
        rows: RowAxis | None = one.rows
        if rows and not keep:
            rows = rows._replace(axis=rows.axis - (axis < rows.axis))
        found.append(Tensor(shape, one.dtype, rows, one.counts))
    return TensorSequence(found)


@rule("SequenceAt")
def _pick(operation: Operation) -> Tensor:
    place = operation.known_numbers(1, "the position in the sequence")
    found = operation.sequence(0)
    if not place or not -len(found) <= place[0] < len(found):
        unknown("the position in the sequence is not known")
    return found[place[0]]


@rule("ConcatFromSequence")
def _join_up(operation: Operation) -> Tensor:
    given = operation.sequence(0)
    axis = operation.attribute("axis", 0)
    if operation.attribute("new_axis", 0):
        given = [
            one for one in (_stacked(one, axis, 1) for one in given) if isinstance(one, Tensor)
        ]
    return joined(given, normalized(axis, given[0].rank))


SEQUENCES = frozenset({"SequenceAt", "ConcatFromSequence"})
"""Operators that accept a sequence."""
