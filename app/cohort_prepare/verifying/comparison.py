"""Run two models on the same cases and measure how far their outputs are apart, batch by batch."""

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
from cohort_prepare.evaluating.pairing import Matched, match_outputs, settle
from cohort_prepare.verifying.tolerance import FLOOR, Allowed

ModelAnswer = Arrays | str
"""Outputs by name, or why the model refused."""

RunCases = Callable[[Sequence[Arrays]], list[ModelAnswer]]
"""Runs a model on each of some inputs."""

GROUP_BYTES = 128 << 20
"""Of inputs that are run in one call."""

MOST_KEPT_BYTES = 64 << 20
"""Of cases that are kept to look for a reason."""

POINTS = 20_000
"""Of each output that are kept to draw."""

POINTS_PER_CASE = 2_000


COLUMN_SHARES = 100
"""A value may be off by so many shares of its own column, where that is less than a share of its
row."""

LEAST_SHARE = 5e-3
"""Of what the row allows, and always allowed: four roundings of its largest value in FP32."""

LEAST_ROWS = 3
"""That tell how large the values of a column are."""


def session_run(session: Session, names: Mapping[str, str] | None = None) -> RunCases:
    """Runs of an ONNX model.

    names: What its inputs are called in the cases; default None: the same. Floats and whole numbers
        are given to it in its own datatype.
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
    """One case that both models were run on.

    expected, got: Outputs of the source and of the model by the source's names, alike in shape and
        kind of elements where they can be made so; None where the model refused.
    refused: Why the model refused; else "".
    ratios: For each row its largest difference, 1 being what is allowed.
    counts: Whether a difference is a verdict; else it is told.
    """

    case: Case
    expected: Arrays
    got: Arrays | None
    refused: str
    ratios: Numbers
    counts: bool = True

    @property
    def rows_off(self) -> Flags:
        """For each row, whether it differs by more than is allowed."""
        return self.ratios > 1

    @property
    def ratio(self) -> float:
        """The largest of all rows."""
        return float(self.ratios.max(initial=0.0))

    @property
    def agrees(self) -> bool:
        """Whether all rows do."""
        return not self.rows_off.any()


@dataclass(slots=True)
class OutputTotals(Differences):
    """One output over all cases that count.

    name: As the source has it. matched: As the model has it.
    rows, rows_off: How many were compared, and how many differ by more than is allowed.
    points: Values of the source and of the model, to draw.
    """

    name: str = ""
    matched: str = ""
    datatype: str = ""
    rows: int = 0
    rows_off: int = 0
    points: list[tuple[Numbers, Numbers]] = field(default_factory=list)

    def add_case(self, measured: Measured, off: Flags) -> None:
        """Count a case in, `off` being its rows that differ by more than is allowed."""
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
    """What the comparison of two models gave.

    outputs: By the source's name.
    cases, agreeing: How many were compared, and on how many the models agree.
    rows: How many were compared in them.
    level: Rows whose two best classes are level in the source, so that rounding chose another.
    skipped: Cases that the source refused, with its reason; they say nothing of the model.
    problems: Why the model is not the source: nothing where it agrees.
    notes: What else is to be known.
    worst: The case with the largest difference, and the row in it.
    kept: Cases to look for a reason in: the first ones, up to 64 MiB.
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
        """Whether the model gives what its source gives."""
        return not self.problems

    @property
    def differs(self) -> bool:
        """Whether more rows differ than are allowed to."""
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
    """Run both on each of `cases` and compare.

    reference: The source; a case that it refuses is skipped.
    candidate: The model; to refuse a case that the source takes is a difference.
    missing: Whether missing values (NaN) are something to agree on, where the source gives numbers
        for them; default no: that they do not is told.
    seen: Told each case, in order.

    Memory is bounded by groups of cases of 128 MiB. Raises what the runs raise.
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
            if kept_bytes <= MOST_KEPT_BYTES:
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
    expected, level = settle(expected, got)
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
    """For each row of the case its largest difference."""
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
    """For each row its largest difference, 1 being what is allowed; infinite for another label."""
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
    if measured.got.ndim == 2 and rows >= LEAST_ROWS:  # a column may be small beside the others
        columns = COLUMN_SHARES * allowed.share * size.max(0, initial=0.0)
        limits = np.minimum(limits, np.maximum(columns, LEAST_SHARE * limits))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares: Numbers = np.where(distance > 0, distance / limits, 0.0)
    return np.asarray(shares.max(1, initial=0.0))


def _decides_otherwise(measured: Measured, limit: Numbers) -> Any:
    """Rows whose argmax differs, and was no tie in the source: ahead by more than is allowed."""
    expected, got = np.asarray(measured.expected, np.float64), measured.got
    best = np.take_along_axis(expected, expected.argmax(-1)[..., None], -1)[..., 0]
    chosen = np.take_along_axis(expected, got.argmax(-1)[..., None], -1)[..., 0]
    with np.errstate(invalid="ignore"):
        ahead = (best - chosen).reshape(len(expected), -1)
    one_sided = np.isinf(measured.distance).reshape(len(expected), -1).any(1)  # type: ignore[arg-type]
    return (ahead > limit[:, None]).any(1) | one_sided
