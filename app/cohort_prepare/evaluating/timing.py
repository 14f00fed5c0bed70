"""Time models in alternating runs, so that other load on the machine affects all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isqrt
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple, TypeVar

Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Seconds of runs: the fastest, the median, and the number of runs."""

    fastest: float
    median: float
    runs: int


def time_in_turn(
    runs: Mapping[Name, Callable[[], object]], *, budget: float = 1.0, least: int = 5
) -> dict[Name, RunTimes]:
    """Time all `runs` alternately, in rounds.

    budget: Total seconds; a round in progress is completed.
    least: Minimum number of rounds, after one for warm-up.
    """
    for run in runs.values():
        run()
    turns = _take_turns(list(runs.values()), budget=budget, least=least)
    return {name: summarize(one.taken) for name, one in zip(runs, turns, strict=True)}


def summarize(seconds: Sequence[float]) -> RunTimes:
    """Return the statistics of runs that took `seconds` each."""
    return RunTimes(min(seconds), median(seconds), len(seconds))


MARGIN = 0.02
"""Smaller differences are ignored: two sessions of the same file differ as much."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two run times: the median over rounds that ran both alternately.

    It is of processor time, since other programs on the machine distort wall-clock time.
    low, high: Bounds of the median at 99 % confidence.
    """

    median: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """True if it is significantly slower."""
        return self.low > 1 + MARGIN

    @property
    def faster(self) -> bool:
        """True if it is significantly faster."""
        return self.high < 1 - MARGIN


@dataclass(frozen=True, slots=True)
class Comparison:
    """Wall-clock seconds of two functions, and the ratio of the second to the first."""

    before: RunTimes
    after: RunTimes
    ratio: Ratio


def compare_in_turn(
    before: Callable[[], object],
    after: Callable[[], object],
    *,
    budget: float = 0.5,
    least: int = 8,
    most: int = 400,
) -> Comparison:
    """Time two functions in rounds, alternating which is first.

    budget: Total seconds; a round in progress is completed.
    least, most: Minimum number of rounds, after one for warm-up, and maximum.
    """
    repeats = max(_repeats(before), _repeats(after))
    one, other = _take_turns(
        (before, after), budget=budget, least=least, most=most, repeats=repeats
    )
    ratios = [mine / its for its, mine in zip(one.worked, other.worked, strict=True) if its]
    return Comparison(summarize(one.taken), summarize(other.taken), bound_ratio(ratios))


def bound_ratio(ratios: Sequence[float]) -> Ratio:
    """Return the median of the ratios, and its bounds by the sign test.

    Bounds are the order statistics at n/2 ± 2.576 √n / 2; for fewer than 8 rounds, the extremes.
    """
    ordered, count = sorted(ratios), len(ratios)
    place = max(0, (count - isqrt(int(6.64 * count)) - 1) // 2)
    return Ratio(median(ordered), ordered[place], ordered[count - 1 - place])


def widest(ratios: Sequence[Ratio]) -> Ratio:
    """Combine ratios: bounds that include all, since sessions of the same file differ slightly."""
    return Ratio(
        median(one.median for one in ratios),
        min(one.low for one in ratios),
        max(one.high for one in ratios),
    )


_MIN_SECONDS = 2e-4
"""Shorter runs are timed several at once, since reading the clock takes time as well."""


def _repeats(run: Callable[[], object]) -> int:
    run()  # the first run of a shape allocates memory
    started = perf_counter()
    run()
    return 1 + int(_MIN_SECONDS / max(perf_counter() - started, 1e-7))


class _Turns(NamedTuple):
    """Times by round: wall-clock seconds of a run, and processor seconds of all its runs."""

    taken: list[float]
    worked: list[float]


def _take_turns(
    runs: Sequence[Callable[[], object]],
    *,
    budget: float,
    least: int,
    most: float = inf,
    repeats: int = 1,
) -> list[_Turns]:
    """Run all in rounds, in alternating order, each `repeats` times."""
    turns = [_Turns([], []) for _ in runs]
    ends, rounds = perf_counter() + budget, 0
    while rounds < least or (rounds < most and perf_counter() < ends):
        for run, turn in list(zip(runs, turns, strict=True))[:: -1 if rounds % 2 else 1]:
            started, started_work = perf_counter(), process_time()
            for _ in range(repeats):
                run()
            turn.worked.append(process_time() - started_work)
            turn.taken.append((perf_counter() - started) / repeats)
        rounds += 1
    return turns
