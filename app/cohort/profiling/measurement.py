"""Measure a model with synthetic inputs: run time by rows, and independence of rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

from cohort.batching import (
    FIRST_AXIS,
    BatchPolicy,
    PadPlan,
    RowCost,
    RowsDoNotFollow,
    RunFeeds,
    count_elements,
    plan_padding,
)
from cohort.errors import CohortError
from cohort.profiling.experiment import FAILED, changed_output, influence
from cohort.profiling.runs import OutOfTime
from cohort.profiling.sharing import plan_rows, why_unbatchable
from cohort.profiling.trial import Trial, example_key, has_open_dimensions, synthetic_inputs
from cohort.row_independence import RowVerdict
from cohort.tensors import Arrays, TensorSpec

GOOD_ENOUGH = 0.9
"""The smallest batch size with at least this share of the best rows per second is chosen."""

PADDED_FAILED = "padded requests failed"

MEASURING = "it is being measured"
"""Reason given for a feature that stays off until the measurement ends."""

MIN_SECONDS = 1e-7
"""Lower bound of a run's duration."""

CHANGES, CHANGE_SECONDS = 3, 0.001
"""Number of timed changes of the number of rows, and the extra time below which it counts as 0.

The fastest change counts.
"""

REPEATS, REPEAT_SECONDS = 6, 0.5
"""Limits for the runs of one size, by number and time; the fastest counts.

Long runs are disturbed less, so they are repeated less.
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """The duration of a version's runs on this machine, and the batch size chosen from it.

    seconds: The duration of a run by its number of rows; empty if the model could not be run.
    max_batch_size: The batch size that was chosen, in rows; 1: requests run one by one.
    reason: Why requests run one by one; default "": they do not.
    row_elements: The elements of a profiled row, in all inputs; default 0: all rows have the same
        number, and no input has strings.
    complete: True if everything was measured (the default). If not, `seconds` has the finished
        measurements, and only a batch size that was shown to be safe is chosen.
    change_seconds: The extra time of a run after one with another number of rows; default 0: none,
        or too little to matter.
    least_rows: The number of rows that each run must have to give requests the same bits as alone;
        default 1.
    contradicted_by: The requests that influence each other although the graph proves that they do
        not; default none.
    """

    seconds: Mapping[int, float]
    max_batch_size: int
    reason: str = ""
    row_elements: int = 0
    complete: bool = True
    change_seconds: float = 0.0
    least_rows: int = 1
    contradicted_by: Sequence[Arrays] = field(default=(), repr=False)

    @property
    def filled_rows(self) -> int:
        """The number of rows that smaller runs are filled up to; 0: they are not filled.

        Runs are filled if bits would differ. They are also filled if a change of the number of rows
        takes longer than the rows that fill up the smallest run.
        """
        chosen, least = self.max_batch_size, self.least_rows
        if chosen > 1 and 0 < self.change_seconds > self.seconds[chosen] - self.seconds[1]:
            return chosen
        return least if least > 1 else 0

    def row_cost(self, policy: BatchPolicy) -> RowCost | None:
        """Return the cost of a row by its length, or None if all rows have the same length.

        If larger batches than the chosen one were not better, its work is also enough for a run of
        longer rows. If no larger one was tried, a run may use the whole latency budget.
        """
        if not self.seconds or not self.row_elements:
            return None
        enough: float = self.max_batch_size
        if enough == max(self.seconds):
            taken = max(self.seconds[self.max_batch_size], 1e-9)
            enough *= max(1.0, policy.latency_budget_ms / 1000 / taken)
        return RowCost(self.row_elements, enough)

    def seconds_for(self, rows: float) -> float:
        """Estimate the seconds of a run of `rows`, by linear interpolation and extrapolation."""
        if not self.seconds:
            return UNKNOWN_SECONDS
        rows = max(rows, self.filled_rows)
        sizes = list(self.seconds)
        if len(sizes) == 1:
            return self.seconds[sizes[0]] * rows / sizes[0]
        right = min(max(bisect_left(sizes, rows), 1), len(sizes) - 1)
        low, high = sizes[right - 1], sizes[right]
        slope = (self.seconds[high] - self.seconds[low]) / (high - low)
        return max(self.seconds[low] + slope * (rows - low), self.seconds[sizes[0]])


UNKNOWN_SECONDS = 0.005


def measure_profile(
    run: RunFeeds,
    trial: Trial,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    policy: BatchPolicy,
    *,
    rows: RowVerdict,
    budget: float = 0.5,
    clock: Callable[[], float] = perf_counter,
    changes: bool = False,
) -> Profile:
    """Measure runs of a model with synthetic inputs, and choose a batch size.

    run: Runs the model. Once it raises OutOfTime, the remaining measurements are skipped.
    trial: Makes the inputs.
    inputs, outputs: The model's specs.
    policy: The batch policy of the model's config.
    rows: The verdict on the independence of rows.
    budget: Additional seconds to time runs of several rows; default 0.5.
    clock: Counts the seconds of runs; default: the system's clock.
    changes: True to measure the extra time of a run after one with another number of rows; default
        False. It is measured only for a model whose rows all have the same length.
    """
    if trial.problem:
        key = "give other inputs" if trial.examples else "give sizes or values that it takes"
        hint = f"; {key} as `{example_key(inputs)}` in config.yaml"
        return Profile({}, 1, f"it could not be run with synthetic inputs: {trial.problem}{hint}")
    fixed = not any(
        spec.datatype == "BYTES" or has_open_dimensions(spec, trial.axes) for spec in inputs
    )
    elements = 0 if fixed else count_elements(trial.feeds(1))
    longest = policy.latency_budget_ms / 1000
    seconds: dict[int, float] = {}
    change_seconds = 0.0
    contradicted_by: Sequence[Arrays] = ()
    reason = why_unbatchable(inputs, outputs, rows, policy)
    if not reason and not policy.batches:
        reason = "max_batch_size is 1"
    try:
        time_runs(run, trial, [1], seconds, longest, REPEAT_SECONDS, clock)
        if not reason and seconds[1] > longest:
            reason = f"a run of one row takes longer than {longest * 1000:g} ms (latency_budget_ms)"
        if not reason:
            more = 8 if seconds[1] < 0.05 else 4
            reason = MEASURING
            stacking = plan_rows(inputs, outputs, rows)
            trust = bool(policy.trust) and not rows.independent
            requests = trial.requests(more)
            found = influence(run, requests, outputs, stacking=stacking, trust=trust)
            if rows.independent and found and not found.startswith(FAILED):
                contradicted_by = requests
            may_fill = stacking is FIRST_AXIS and not policy.trust and not elements
            if changes and may_fill and not found:
                change_seconds = time_changes(run, trial, more, seconds[1], clock)
            reason = found  # set last: if time runs out before, batching must stay off
        if not reason:
            larger = list(sizes_up_to(policy.max_batch_size))[1:]
            time_runs(run, trial, larger, seconds, longest, budget, clock)
    except OutOfTime:
        complete = False
        seconds = seconds or {1: trial.seconds}
    else:
        complete = True
    chosen = 1 if reason else choose_size(seconds, longest)
    if chosen == 1 and not reason:
        reason = "larger batches are not faster here" if complete else MEASURING
    return Profile(
        dict(sorted(seconds.items())),
        chosen,
        reason,
        elements,
        complete,
        change_seconds,
        contradicted_by=contradicted_by,
    )


def choose_size(seconds: Mapping[int, float], latency_budget: float) -> int:
    """Return the smallest number of rows that is nearly as fast per row as the fastest.

    Sizes whose run takes longer than `latency_budget` seconds are excluded, except 1.
    """
    allowed = {n: taken for n, taken in seconds.items() if taken <= latency_budget or n == 1}
    best = max(n / taken for n, taken in allowed.items())
    return min(n for n, taken in allowed.items() if n / taken >= GOOD_ENOUGH * best)


def pad_safely(
    run: RunFeeds,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    policy: BatchPolicy,
) -> PadPlan:
    """Plan `batching.pad`, and keep the plan only if padding does not change the outputs.

    A model that ignores its mask, or does not have one, gives other outputs for a padded request.
    """
    plan = plan_padding(inputs, outputs, policy.pad)
    if not plan.inputs or not policy.batches:
        return plan
    if policy.exact:
        return PadPlan(reason="a padded run may give other bits (batching.exact)")
    if reason := _padding_changes(run, inputs, outputs, plan):
        return PadPlan(reason=reason)
    return plan


def _padding_changes(
    run: RunFeeds, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], plan: PadPlan
) -> str:
    longest = max(plan.multiples.values())
    requests = []
    for length in sorted({longest, max(1, longest - 1), longest // 2 + 1}, reverse=True):
        request = synthetic_inputs(inputs, 1, longest)
        for name, (axis, _, symbol) in plan.inputs.items():
            own = length * plan.multiples[symbol] // longest or 1
            request[name] = request[name][(slice(None),) * axis + (slice(own),)]
        requests.append(request)
    try:
        joined = plan.join(requests)
        parts = plan.split(run(joined.feeds), [1] * len(requests), joined)
        for request, part in zip(requests, parts, strict=True):
            if changed := changed_output(outputs, run(request), part):
                return f"padding changes the outputs: output {changed!r} of a request changes"
    except (CohortError, RowsDoNotFollow) as error:
        return f"{PADDED_FAILED}: {error}"
    return ""


def time_runs(
    run: RunFeeds,
    trial: Trial,
    sizes: Iterable[int],
    seconds: dict[int, float],
    longest: float,
    budget: float,
    clock: Callable[[], float],
) -> None:
    """Time runs with the numbers of rows in `sizes`, in order.

    run: Runs the model.
    trial: Makes the inputs.
    seconds: Receives the duration of a run by its rows. If it has an entry, a CohortError of a run
        ends the measurement and is not raised.
    longest: The duration of a run, in seconds, above which no larger one is tried.
    budget: Seconds to measure; the first size always runs once.
    clock: Counts the seconds of runs.
    """
    until = clock() + budget
    for rows in sizes:
        feeds = trial.feeds(rows)
        try:
            seconds[rows] = _seconds(run, feeds, until, clock)
        except CohortError:
            if not seconds:
                raise
            break
        if seconds[rows] > longest or clock() > until:
            break


def time_changes(
    run: RunFeeds, trial: Trial, rows: int, seconds: float, clock: Callable[[], float]
) -> float:
    """Return the smallest extra time, over `seconds`, of a run of one row after one of `rows`.

    Returns 0 if it is less than CHANGE_SECONDS, or if a run fails.
    """
    one, more = trial.feeds(1), trial.feeds(rows)
    least = float("inf")
    with suppress(CohortError):
        for _ in range(CHANGES):
            run(more)
            started = clock()
            run(one)
            least = min(least, clock() - started - seconds)
            if least < CHANGE_SECONDS:
                return 0.0
        return least
    return 0.0


def sizes_up_to(largest: int) -> Iterator[int]:
    """Yield 1, 2, 4, … and `largest` itself."""
    size = 1
    while size < largest:
        yield size
        size *= 2
    yield largest


def _seconds(run: RunFeeds, feeds: Arrays, until: float, clock: Callable[[], float]) -> float:
    """Return the seconds of the fastest of some runs: a disturbance only makes a run longer."""
    best = float("inf")
    until = min(until, clock() + REPEAT_SECONDS)
    for _ in range(REPEATS):  # the first of a shape allocates
        started = clock()
        run(feeds)
        ended = clock()
        best = min(best, ended - started)
        if ended > until:
            break
    return max(best, MIN_SECONDS)
