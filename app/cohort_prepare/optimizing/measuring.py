"""Compare the outputs and times of a model before and after a step.

Runs in a child process, since a model can crash ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from cohort.comparing import Pair, Rounding, explain
from cohort.errors import CohortError, LoadFailed
from cohort.profiling import find_trial, is_along_axis_0, why_unbatchable
from cohort.session import Session, open_session
from cohort.tensors import Arrays
from cohort_prepare.evaluating.cases import Cases, find_influence, fit_cases, read_cases, run_named
from cohort_prepare.evaluating.differences import largest, measure_pairs
from cohort_prepare.evaluating.generated import LENGTHS_TRIED, generated_cases
from cohort_prepare.evaluating.graph_hints import GraphHints, read_hints
from cohort_prepare.evaluating.timing import Comparison, compare_in_turn, widest
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.steps import StepDifference

OPENINGS = 3
"""Sessions of each model for timing: two sessions of the same file differ as well."""

MAX_GENERATED_ROWS = 16
"""Maximum rows of generated inputs in one run."""

MAX_VERIFIED_ROWS = 256
"""Maximum rows of given inputs in one run."""

INFLUENCE_ROWS = 4


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """Comparison of two models.

    problem: Reason why the second cannot replace the first; default "": it can.
    difference: Largest difference of outputs; None if they are not comparable.
    runs: Run times by batch size; empty if there is a problem.
    load: Load times; None if there is a problem.
    unbatchable: Reason why only one batch size is timed; default "".
    """

    problem: str = ""
    difference: StepDifference | None = None
    runs: Mapping[int, Comparison] = field(default_factory=dict)
    load: Comparison | None = None
    unbatchable: str = ""


def measure_change(
    before: Path,
    after: Path,
    *,
    allowed: Rounding,
    sizes: Sequence[int],
    budget: float,
    cases: Path | None = None,
) -> MeasuredChange:
    """Compare two models' outputs, then their times.

    cases: A .npz with inputs; default None: generated.

    Raises Rejected if the first model cannot run, and Misused if `cases` do not fit.
    """
    one = _open_first(before)
    try:
        other = open_session(after)
    except LoadFailed as error:
        return MeasuredChange(f"ONNX Runtime cannot open the result: {error}")
    inputs = _Inputs(one, cases, read_hints(before))
    problem, difference = _verify(one, other, inputs, allowed)
    if problem:
        return MeasuredChange(problem, difference)
    one.close()
    other.close()
    return MeasuredChange(
        "",
        difference,
        _time_runs(before, after, [inputs.feeds(rows) for rows in inputs.sizes(sizes)], budget),
        _time_loads(before, after, budget),
        inputs.unbatchable,
    )


def check_runs(path: Path, cases: Path | None = None) -> None:
    """Raise Rejected unless the model runs and repeats its outputs; Misused as `measure_change`.

    cases: A .npz with inputs; default None: generated.
    """
    session = _open_first(path)
    feeds = _Inputs(session, cases).feeds(1)
    if reason := explain(Pair(_run_first(session, feeds), _run_first(session, feeds)), _REPEATED):
        raise Rejected(
            f"the model gives different outputs for the same inputs ({reason}), so no step can be "
            "verified; does it have random operators?"
        )


_REPEATED = Rounding(1e-4, 0.01)


class _Inputs:
    """Inputs for models with the same interface."""

    def __init__(
        self, session: Session, path: Path | None, hints: GraphHints | None = None
    ) -> None:
        self._specs = session.inputs
        self._cases = fit_cases(read_cases(path), session.inputs, path) if path else None
        self.unbatchable = why_unbatchable(session.inputs, session.outputs, session.rows)
        if path and not self.unbatchable and not is_along_axis_0(session.rows):
            self.unbatchable = "rows are not along axis 0"
        self._hints = hints or GraphHints()
        if path is None:
            self._trial = find_trial(session.run, session.inputs, session.rows.axes, session.tables)
            if self._trial.problem:
                raise Misused(f"generated inputs do not fit ({self._trial.problem}): use --inputs")

    def sizes(self, wanted: Sequence[int]) -> list[int]:
        """Return the batch sizes to time."""
        return [1] if self.unbatchable else list(wanted)

    def feeds(self, rows: int) -> Arrays:
        """Return inputs with `rows` rows, if the number is variable."""
        if self._cases is None:
            return self._trial.feeds(rows)
        if self.unbatchable:
            return dict(self._cases.inputs)
        return self._cases.repeated(rows)

    def requests(self, count: int) -> list[Arrays]:
        """Return `count` requests of one row each, for models that can be batched."""
        if self._cases is None:
            return self._trial.requests(count)
        return [one.inputs for _, one in Cases(self.feeds(count)).batches(1)]

    def to_verify(self) -> list[Arrays]:
        """Return all inputs to compare outputs on; generated ones may be invalid for the model."""
        if self._cases is not None:
            if self.unbatchable:
                return [self.feeds(1)]
            return [self.feeds(rows) for rows in (1, min(self._cases.rows, MAX_VERIFIED_ROWS))]
        generated = generated_cases(
            self._specs, self._hints, length=self._trial.length or LENGTHS_TRIED[0]
        )
        return [self.feeds(1)] + [
            dict(one.inputs)
            for one in generated
            if one.purpose != "missing" and one.rows <= MAX_GENERATED_ROWS
        ]


def _verify(
    one: Session, other: Session, inputs: _Inputs, allowed: Rounding
) -> tuple[str, StepDifference | None]:
    pairs = []
    for feeds in inputs.to_verify():
        try:
            expected = run_named(one, feeds)
        except CohortError:  # it may not accept every length
            continue
        try:
            pairs.append(Pair(expected, run_named(other, feeds)))
        except CohortError as error:
            return f"the result cannot run: {error}", None
    difference = largest(measure_pairs(pairs).values())
    for pair in pairs:
        if reason := explain(pair, allowed):
            hint = _OVERFLOW if "infinity" in reason and allowed.share >= _LOSSY_SHARE else ""
            return reason + hint, difference
    if not inputs.unbatchable:
        requests = inputs.requests(INFLUENCE_ROWS)
        reason = find_influence(other, requests)
        if reason and not find_influence(one, requests):
            return reason, difference
    return "", difference


_OVERFLOW = "; intermediate values exceed 65504, the maximum of float16"

_LOSSY_SHARE = 0.01


def _open_first(path: Path) -> Session:
    try:
        return open_session(path)
    except LoadFailed as error:
        raise Rejected(f"ONNX Runtime cannot open the model: {error}") from error


def _run_first(session: Session, feeds: Arrays) -> Arrays:
    try:
        return run_named(session, feeds)
    except CohortError as error:
        raise Rejected(f"the model cannot run: {error}") from error


def _time_runs(
    before: Path, after: Path, feeds: Sequence[Arrays], budget: float
) -> dict[int, Comparison]:
    """Time runs by batch size on several sessions each; combine their bounds."""
    found: dict[int, list[Comparison]] = {}
    for _ in range(OPENINGS):
        one, other = open_session(before), open_session(after)
        for arrays in feeds:
            rows = Cases(arrays).rows
            with suppress(CohortError):  # for example, too many rows for this machine
                found.setdefault(rows, []).append(
                    compare_in_turn(
                        _runner(one, arrays),
                        _runner(other, arrays),
                        budget=budget / OPENINGS / len(feeds),
                    )
                )
        one.close()
        other.close()
    return {rows: _joined(several) for rows, several in found.items() if several}


def _runner(session: Session, arrays: Arrays) -> Callable[[], object]:
    return lambda: session.run(arrays)


def _joined(several: Sequence[Comparison]) -> Comparison:
    best = [
        min((getattr(one, side) for one in several), key=lambda t: t.median)
        for side in ("before", "after")
    ]
    return Comparison(best[0], best[1], widest([one.ratio for one in several]))


def _time_loads(before: Path, after: Path, budget: float) -> Comparison:
    """Time how long a server without a cache needs to open the models."""
    started = perf_counter()
    open_session(before).close()
    slow = perf_counter() - started > budget / 8
    return compare_in_turn(
        lambda: open_session(before).close(),
        lambda: open_session(after).close(),
        budget=budget / 2,
        least=5 if slow else 8,
        most=40,
    )
