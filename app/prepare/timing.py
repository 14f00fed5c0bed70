"""How long models take, side by side: one run of each in turn, so that a busy moment meets all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TypeVar

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
    """Time each of `runs`, one after the other and over again.

    budget: Seconds for all of them; a round begun is ended.
    least: Rounds to take in any case, after one that does not count.
    """
    taken: dict[Name, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    ends, rounds = perf_counter() + budget, 0
    while rounds < least or perf_counter() < ends:
        for name, run in runs.items():
            started = perf_counter()
            run()
            taken[name].append(perf_counter() - started)
        rounds += 1
    return {name: summarize(seconds) for name, seconds in taken.items()}


def summarize(seconds: Sequence[float]) -> RunTimes:
    """The figures of runs that took `seconds` each."""
    return RunTimes(min(seconds), median(seconds), len(seconds))
