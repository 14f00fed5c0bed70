"""How many threads an exclusive run takes: one that starts while nothing else runs or waits.

With a run on every core, one thread each is best: more would only wait for each other. An exclusive
run leaves the other cores idle, and a second session, on several threads, gives it those. Whether
that pays is measured, on one thread and on more by turns, since the machine may be doing something
else as well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from cohort.batching import RunFeeds
from cohort.errors import CohortError
from cohort.profiling.measurement import SHORTEST_SECONDS
from cohort.profiling.runs import FREE_RUNS, Runs
from cohort.profiling.trial import Trial
from cohort.session import Session, cores
from cohort.tensors import Arrays

Reopen = Callable[[int], Session]
"""Opens the model once more, for exclusive runs on so many threads. Raises LoadFailed."""

MIN_RUN_SECONDS = 0.001
"""Seconds: waking other threads for a shorter run takes about what it saves."""

GAIN = 1.1
"""More threads are chosen where an exclusive run is this much faster."""

MAX_VERSION_BYTES = 1 << 29
"""Bytes of a version's folder: a second session has the weights in memory a second time."""

TURNS = 3
"""How many times exclusive runs on one thread and on several are timed in turn, at least."""

TURN_SECONDS = 0.12
"""How long runs are timed in each turn."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads `chosen` for an exclusive run.

    On `tried` threads it was `gain` times as fast as on one; `tried` is 1 where nothing was
    measured.
    """

    chosen: int = 1
    tried: int = 1
    gain: float = 1.0


ONE = Threads()


def small_enough(path: Path) -> bool:
    """Whether the model at `path`, with what lies beside it, may be in memory twice."""
    with suppress(OSError):
        files = [file.stat() for file in path.parent.rglob("*")]
        return bool(files) and sum(file.st_size for file in files) <= MAX_VERSION_BYTES
    return False


def may_pay(session: Session, seconds: float) -> bool:
    """Whether more threads may pay for a model that takes `seconds` on `session`'s one."""
    return session.device == "cpu" and cores() > 1 and seconds >= MIN_RUN_SECONDS


def find_threads(
    session: Session,
    trial: Trial,
    seconds: float,
    reopen: Reopen,
    runs: Runs = FREE_RUNS,
) -> Threads:
    """Choose the threads for exclusive runs of a model that takes `seconds` on `session`'s one."""
    if not may_pay(session, seconds):
        return ONE
    found = ONE
    with suppress(CohortError):  # of a run or of opening: then it stays at one
        for count in counts_up_to(cores()):
            other = reopen(count)
            try:
                feeds, run = trial.feeds(1), runs.of(other)
                run(feeds)  # the first run allocates
                gain = measure_gain(runs.of(session), run, feeds, seconds, runs.clock)
            finally:
                other.close()
            found = Threads(count if gain >= GAIN else 1, count, gain)
            if found.chosen > 1:
                break
    return found


def counts_up_to(most: int) -> list[int]:
    """The numbers of threads to try, in order: all cores, then a quarter of them and so on."""
    counts = [most]
    while (fewer := counts[-1] // 4) > 1:
        counts.append(fewer)
    if counts[-1] > 2:
        counts.append(2)
    return counts


def measure_gain(
    one: RunFeeds,
    more: RunFeeds,
    feeds: Arrays,
    seconds: float,
    clock: Callable[[], float] = perf_counter,
) -> float:
    """How many times as fast exclusive runs of `more` are as those of `one`, which take `seconds`.

    Each at the best of its turns: what disturbs a run only ever makes it longer. Long runs, which
    have been timed just before, are disturbed less, and are not repeated.
    """
    if seconds >= TURN_SECONDS:
        return seconds * _speed(more, feeds, clock)
    of_one = of_more = 0.0
    for turn in range(1, 2 * TURNS + 1):
        of_one = max(of_one, _speed(one, feeds, clock))
        of_more = max(of_more, _speed(more, feeds, clock))
        if turn >= TURNS and of_more >= GAIN * of_one:
            break  # else something may have had the other cores: go on for a while
    return of_more / of_one


def _speed(run: RunFeeds, feeds: Arrays, clock: Callable[[], float]) -> float:
    """Runs per second."""
    runs, started = 0, clock()
    while not runs or clock() - started < TURN_SECONDS:
        run(feeds)
        runs += 1
    return runs / max(clock() - started, SHORTEST_SECONDS)
