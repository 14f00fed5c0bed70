"""Run two models on the same cases, and measure the differences of outputs batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cohort.comparing import Flags, Measured, Numbers
from cohort.errors import CohortError
from cohort.session import Session
from cohort.tensors import Array, Arrays
from cohort_prepare.evaluating.cases import in_datatype, run_named
from cohort_prepare.evaluating.differences import Differences, is_scores, measure_rows
from cohort_prepare.evaluating.generated import TOLD_ONLY, Case
from cohort_prepare.evaluating.pairing import Matched, match_outputs, resolve_ties
from cohort_prepare.verifying.tolerance import FLOOR, Allowed

ModelAnswer = Arrays | str
"""Outputs by name, or the reason of a failed run."""

RunCases = Callable[[Sequence[Arrays]], list[ModelAnswer]]
"""Runs a model on each of several inputs."""

GROUP_BYTES = 128 << 20
"""Maximum size of inputs that are run in one call."""

MAX_KEPT_BYTES = 64 << 20
"""Maximum size of cases kept for the diagnosis."""

POINTS = 20_000
"""Values of each output kept for the plot."""

POINTS_PER_CASE = 2_000


COLUMN_SHARES = 100
"""Allowance of a value in units of `share` of its column's largest value, if below its row's."""

MIN_SHARE = 5e-3
"""Share of the row's allowance that is always allowed: four FP32 roundings of its largest value."""

MIN_ROWS = 3
"""Rows needed to estimate the size of a column's values."""


def session_run(session: Session, names: Mapping[str, str] | None = None) -> RunCases:
    """Return a function that runs an ONNX model.

    names: Names of its inputs in the cases; default None: the same. Floats and integers are
        converted to the input's datatype.
    """
    known = names or {}

    def run(cases: Sequence[Arrays]) -> list[ModelAnswer]:
        return [_run_session(session, _fed(session, case, known)) for case in cases]

    return run


def _fed(session: Session, case: Arrays, names: Mapping[str, str]) -> Arrays:
    dtypes = {spec.name: spec.dtype for spec in session.inputs}
    fed = {names.get(name, name): array for name, array in case.items()}
    return {name: in_datatype(array, dtypes.get(name, array.dtype)) for name, array in fed.items()}


def _run_session(session: Session, case: Arrays) -> ModelAnswer:
    try:
        return run_named(session, case)
    except CohortError as error:
        return str(error)


@dataclass(frozen=True, slots=True, eq=False)
class ComparedCase:
    """A case that both models ran.

    expected, got: Outputs of the source and the model by the source's names, with equal shapes and
        kinds if possible. `got` is None if the model failed.
    refused: Reason why the model failed; else "".
    ratios: Largest difference of each row; 1 is the allowed difference.
    counts: True if a difference is a failure; otherwise it is only a note.
    """

    case: Case
    expected: Arrays
    got: Arrays | None
    refused: str
    ratios: Numbers
    counts: bool = True

    @property
    def rows_off(self) -> Flags:
        """True for each row that differs by more than is allowed."""
        return self.ratios > 1

    @property
    def ratio(self) -> float:
        """Largest ratio of all rows."""
        return float(self.ratios.max(initial=0.0))

    @property
    def agrees(self) -> bool:
        """True if all rows agree."""
        return not self.rows_off.any()


@dataclass(slots=True)
class OutputTotals(Differences):
    """Differences of one output over all cases that count.

    name: Name in the source. matched: Name in the model.
    rows, rows_off: Rows compared, and rows that differ by more than is allowed.
    points: Values of the source and the model for the plot.
    """

    name: str = ""
    matched: str = ""
    datatype: str = ""
    rows: int = 0
    rows_off: int = 0
    points: list[tuple[Numbers, Numbers]] = field(default_factory=list)

    def add_case(self, measured: Measured, off: Flags) -> None:
        """Add a case; `off` marks the rows that differ by more than is allowed."""
        self.add(measured)
        self.rows += len(off)
        self.rows_off += int(np.count_nonzero(off))
        if measured.kind == "float" and sum(len(one) for one, _ in self.points) < POINTS:
            sides = [np.asarray(one, np.float64) for one in (measured.expected, measured.got)]
            finite = np.isfinite(sides).all(0)
            one, other = (side[finite] for side in sides)
            step = -(-max(one.size, 1) // POINTS_PER_CASE)
            self.points.append((one[::step].copy(), other[::step].copy()))


@dataclass(slots=True)
class Verification:
    """Result of a comparison.

    outputs: By the source's name.
    cases, agreeing: Cases compared, and cases without differences.
    rows: Rows in all cases.
    level: Rows whose two best scores are equal in the source, where rounding chose the other class.
    skipped: Cases that the source rejected, with the reason; they do not count.
    problems: Reasons why the model differs from its source; empty if it agrees.
    notes: Further notes.
    worst: The case with the largest difference, and its row.
    kept: Cases for the diagnosis: the first ones, up to 64 MiB.
    """

    allowed: Allowed
    outputs: dict[str, OutputTotals] = field(default_factory=dict)
    cases: int = 0
    agreeing: int = 0
    rows: int = 0
    rows_off: int = 0
    level: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    worst: tuple[ComparedCase, int] | None = None
    kept: list[ComparedCase] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """True if the model agrees with its source."""
        return not self.problems

    @property
    def differs(self) -> bool:
        """True if more rows differ than are allowed to."""
        return self.rows_off > self.allowed.rows_off * self.rows


def compare_models(
    reference: RunCases,
    candidate: RunCases,
    cases: Iterable[Case],
    allowed: Allowed,
    *,
    missing: bool = False,
    seen: Callable[[ComparedCase], None] = lambda _: None,
) -> Verification:
    """Run both models on each of `cases`, and compare.

    reference: The source; cases that it rejects are skipped.
    candidate: The model; a case that only the model rejects is a difference.
    missing: True if differences for missing values (NaN) count, if the source returns numbers for
        them; default False: they are only a note.
    seen: Called with each case, in order.

    Memory is bounded by groups of cases of 128 MiB. Raises the errors of the runs.
    """
    found = Verification(allowed)
    kept_bytes = 0
    for group in _groups(cases):
        inputs = [case.inputs for case in group]
        sides = zip(group, reference(inputs), candidate(inputs), strict=True)
        for case, expected, got in sides:
            if isinstance(expected, str):
                found.skipped.append((case.title, expected))
                continue
            counts = case.purpose not in TOLD_ONLY or (
                missing and case.purpose == "missing" and _all_finite(expected)
            )
            compared = _compare_case(found, case, expected, got, counts=counts)
            seen(compared)
            kept_bytes += _size(compared)
            if kept_bytes <= MAX_KEPT_BYTES:
                found.kept.append(compared)
    return found


def _groups(cases: Iterable[Case]) -> Iterator[list[Case]]:
    group: list[Case] = []
    size = 0
    for case in cases:
        group.append(case)
        size += sum(array.nbytes for array in case.inputs.values())
        if size > GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _size(compared: ComparedCase) -> int:
    sides: list[Mapping[str, Array]] = [compared.case.inputs, compared.expected]
    return sum(array.nbytes for side in sides for array in side.values()) * 2


def _all_finite(outputs: Arrays) -> bool:
    return all(np.isfinite(one).all() for one in outputs.values() if one.dtype.kind == "f")


def _compare_case(
    found: Verification, case: Case, expected: Arrays, got: ModelAnswer, *, counts: bool
) -> ComparedCase:
    if isinstance(got, str):
        compared = ComparedCase(case, expected, None, got, np.full(case.rows, np.inf), counts)
        _count(found, compared)
        return compared
    expected, level = resolve_ties(expected, got)
    found.level += level
    matched = match_outputs(expected, got)
    found.notes |= dict.fromkeys(matched.notes)
    of_rows = np.full(case.rows, np.inf if matched.missing else 0.0)
    for pair in matched.pairs:
        of_rows = np.maximum(of_rows, _compare_output(found, pair, case, counts=counts))
    compared = ComparedCase(
        case,
        {pair.name: pair.expected for pair in matched.pairs} or expected,
        {pair.name: pair.got for pair in matched.pairs},
        "",
        of_rows,
        counts,
    )
    _count(found, compared)
    return compared


def _count(found: Verification, compared: ComparedCase) -> None:
    if not compared.counts:
        return
    found.cases += 1
    found.agreeing += compared.agrees
    found.rows += len(compared.rows_off)
    found.rows_off += int(np.count_nonzero(compared.rows_off))
    if compared.agrees:
        return
    if found.worst is None or compared.ratio > found.worst[0].ratio:
        found.worst = (compared, int(compared.rows_off.argmax()))


def _compare_output(found: Verification, pair: Matched, case: Case, *, counts: bool) -> Numbers:
    """Return the largest difference of each row of the case."""
    totals = found.outputs.setdefault(
        pair.name,
        OutputTotals(name=pair.name, matched=pair.matched, datatype=str(pair.got.dtype)),
    )
    if not pair.comparable:
        totals.rows += case.rows * counts
        totals.rows_off += case.rows * counts
        return np.full(case.rows, np.inf)
    measured = measure_rows(pair.expected, pair.got, case.rows)
    of_rows = ratios(measured, found.allowed)
    if counts:
        totals.add_case(measured, of_rows > 1)
    return np.broadcast_to(of_rows, case.rows)


def ratios(measured: Measured, allowed: Allowed) -> Numbers:
    """Return each row's largest difference; 1 is allowed, infinity is for another label."""
    rows = len(measured.unequal)
    if rows == 0:
        return np.zeros(0)
    if measured.kind != "float" or measured.distance is None or measured.size is None:
        return np.where(measured.unequal.reshape(rows, -1).any(1), np.inf, 0.0)
    distance, size = (one.reshape(rows, -1) for one in (measured.distance, measured.size))
    scale = size.max(1, initial=0.0)
    limit = allowed.share * np.maximum(scale, FLOOR * scale.max(initial=0.0))
    if allowed.by_decision and is_scores(measured):
        return np.where(_decides_otherwise(measured, limit), np.inf, 0.0)
    limits = limit[:, None]
    # A column's values may be much smaller than the others'.
    if measured.got.ndim == 2 and rows >= MIN_ROWS:
        columns = COLUMN_SHARES * allowed.share * size.max(0, initial=0.0)
        limits = np.minimum(limits, np.maximum(columns, MIN_SHARE * limits))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares: Numbers = np.where(distance > 0, distance / limits, 0.0)
    return np.asarray(shares.max(1, initial=0.0))


def _decides_otherwise(measured: Measured, limit: Numbers) -> Any:
    """Mark rows with another argmax whose scores are not almost equal in the source."""
    expected, got = np.asarray(measured.expected, np.float64), measured.got
    best = np.take_along_axis(expected, expected.argmax(-1)[..., None], -1)[..., 0]
    chosen = np.take_along_axis(expected, got.argmax(-1)[..., None], -1)[..., 0]
    with np.errstate(invalid="ignore"):
        ahead = (best - chosen).reshape(len(expected), -1)
    one_sided = np.isinf(measured.distance).reshape(len(expected), -1).any(1)  # type: ignore[arg-type]
    return (ahead > limit[:, None]).any(1) | one_sided
