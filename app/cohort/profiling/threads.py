"""Choice of the threads for exclusive runs, which start while no other run is active or waiting.

With a run on every core, one thread per run is best: more threads would only wait for each other.
An exclusive run on one thread leaves the other cores idle. A second session, on several threads,
uses them. Its benefit is measured: one and several threads are timed alternately, because the
machine may also be busy with other work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from cohort.batching import RunFeeds
from cohort.errors import CohortError
from cohort.profiling.measurement import MIN_SECONDS
from cohort.profiling.runs import FREE_RUNS, Runs
from cohort.profiling.trial import Trial
from cohort.session import Session, cores
from cohort.tensors import Arrays

Reopen = Callable[[int], Session]
"""Opens the model again, for exclusive runs on the given number of threads. Raises LoadFailed."""

MIN_RUN_SECONDS = 0.001
"""Seconds; in a shorter run, waking other threads takes about as long as they save."""

GAIN = 1.1
"""Speedup of an exclusive run from which more threads are chosen."""

MAX_VERSION_BYTES = 1 << 29
"""Size limit of a version's folder: a second session holds a second copy of the weights."""

TURNS = 3
"""Minimum number of turns in which runs on one and on several threads are timed."""

TURN_SECONDS = 0.12
"""Time for which runs are timed in each turn."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads `chosen` for an exclusive run.

    On `tried` threads it was `gain` times as fast as on one; `tried` is 1 if none were measured.
    """

    chosen: int = 1
    tried: int = 1
    gain: float = 1.0


ONE = Threads()


def small_enough(path: Path) -> bool:
    """Return True if the model at `path`, with all files of its folder, may be in memory twice."""
    with suppress(OSError):
        files = [file.stat() for file in path.parent.rglob("*")]
        return bool(files) and sum(file.st_size for file in files) <= MAX_VERSION_BYTES
    return False


def may_pay(session: Session, seconds: float) -> bool:
    """Return True if more threads may help a model whose run takes `seconds` on one."""
    return session.device == "cpu" and cores() > 1 and seconds >= MIN_RUN_SECONDS


def find_threads(
    session: Session,
    trial: Trial,
    seconds: float,
    reopen: Reopen,
    runs: Runs = FREE_RUNS,
) -> Threads:
    """Choose the threads for exclusive runs of a model that takes `seconds` in `session`."""
    if not may_pay(session, seconds):
        return ONE
    found = ONE
    with suppress(CohortError):  # if a run or opening fails, one thread is used
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
    """Return the numbers of threads to try: `most`, a quarter of it and so on, and 2."""
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
    """Return the speedup of exclusive runs of `more` over those of `one`, which take `seconds`.

    The best turn of each counts, because a disturbance only makes a run longer. Long runs are
    disturbed less. They have just been timed, so those of `one` are not repeated.
    """
    if seconds >= TURN_SECONDS:
        return seconds * _speed(more, feeds, clock)
    of_one = of_more = 0.0
    for turn in range(1, 2 * TURNS + 1):
        of_one = max(of_one, _speed(one, feeds, clock))
        of_more = max(of_more, _speed(more, feeds, clock))
        if turn >= TURNS and of_more >= GAIN * of_one:
            break  # otherwise other work may have used the cores: measure more turns
    return of_more / of_one


def _speed(run: RunFeeds, feeds: Arrays, clock: Callable[[], float]) -> float:
    """Return the runs per second."""
    runs, started = 0, clock()
    while not runs or clock() - started < TURN_SECONDS:
        run(feeds)
        runs += 1
    return runs / max(clock() - started, MIN_SECONDS)
