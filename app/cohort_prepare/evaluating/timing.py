"""How long models take, side by side: one run of each in turn, so that a busy moment meets all."""

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
    """Seconds that runs took: the fastest, the median, and how many there were."""

    fastest: float
    median: float
    runs: int


def time_in_turn(
    runs: Mapping[Name, Callable[[], object]], *, budget: float = 1.0, least: int = 5
) -> dict[Name, RunTimes]:
    """Time each of `runs`, all in turn and over again.

    budget: Seconds for all of them; a round begun is ended.
    least: Rounds to take in any case, after one that does not count.
    """
    for run in runs.values():
        run()
    turns = _take_turns(list(runs.values()), budget=budget, least=least)
    return {name: summarize(one.taken) for name, one in zip(runs, turns, strict=True)}


def summarize(seconds: Sequence[float]) -> RunTimes:
    """The figures of runs that took `seconds` each."""
    return RunTimes(min(seconds), median(seconds), len(seconds))


MARGIN = 0.02
"""Less than this is no difference: two sessions of one file differ as much."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """What one thing takes, in units of another: the median over rounds that ran both, one by one.

    Counted in time on processors, as what else the machine does is no fault of either.

    low, high: The bounds of that median, at a confidence of 99 %.
    """

    median: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """Whether it takes more, beyond doubt."""
        return self.low > 1 + MARGIN

    @property
    def faster(self) -> bool:
        """Whether it takes less, beyond doubt."""
        return self.high < 1 - MARGIN


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two things took, in seconds by the clock, and the ratio of the second to the first."""

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
    """Time two things in rounds, each first in every other round.

    budget: Seconds for both; a round begun is ended.
    least, most: Rounds to take in any case, after one that does not count, and at most.
    """
    repeats = max(_repeats(before), _repeats(after))
    one, other = _take_turns(
        (before, after), budget=budget, least=least, most=most, repeats=repeats
    )
    ratios = [mine / its for its, mine in zip(one.worked, other.worked, strict=True) if its]
    return Comparison(summarize(one.taken), summarize(other.taken), bound_ratio(ratios))


def bound_ratio(ratios: Sequence[float]) -> Ratio:
    """The median of the ratios of rounds, and its bounds by the sign test.

    Source: the order statistics at n/2 ± 2.576 √n / 2; fewer than 8 bound it by their extremes.
    """
    ordered, count = sorted(ratios), len(ratios)
    place = max(0, (count - isqrt(int(6.64 * count)) - 1) // 2)
    return Ratio(median(ordered), ordered[place], ordered[count - 1 - place])


def widest(ratios: Sequence[Ratio]) -> Ratio:
    """One ratio of several: bounds that hold each, since sessions of one file differ a little."""
    return Ratio(
        median(one.median for one in ratios),
        min(one.low for one in ratios),
        max(one.high for one in ratios),
    )


_SHORTEST_SECONDS = 2e-4
"""What is shorter is timed several times over, since reading the clock takes time as well."""


def _repeats(run: Callable[[], object]) -> int:
    run()  # the first of a shape allocates
    started = perf_counter()
    run()
    return 1 + int(_SHORTEST_SECONDS / max(perf_counter() - started, 1e-7))


class _Turns(NamedTuple):
    """Of one thing, by rounds: seconds of a run by the clock, and of all its runs on processors."""

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
    """Run all in rounds, the last first in every other round, each `repeats` times at once."""
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
