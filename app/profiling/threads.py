"""How many threads a run takes: one, or several, so that a lone caller has the idle cores as well.

With as many runs at once as there are cores, one thread each is best, and more must not cost much;
with one run the other cores would idle. So both are measured, on one thread and on more, turn by
turn, since the machine may be doing something else as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from app.errors import CohortError
from app.profiling.measuring import Run, find_trial
from app.profiling.together import run_together
from app.session import Session, cores
from app.tensors import Arrays

Reopen = Callable[[int], Session]
"""Opens the model once more, with so many threads per run. Raises LoadFailed."""

WORTH_A_LOOK = 0.001
"""Seconds: waking another thread for a shorter run takes about what it saves."""

GAIN, KEPT = 1.2, 0.95
"""More threads are chosen where a lone run gains this much, and runs at once keep this much."""

TURNS, TURN_SECONDS = 3, 0.12


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads `chosen` for a run, and what was measured of `tried` threads against one.

    `alone` is the speed of a lone run over that on one thread; `at_once` the same with as many
    runs at once as there are cores. `tried` is 1 where nothing was measured, and `at_once` 0 where
    `alone` said enough.
    """

    chosen: int = 1
    tried: int = 1
    alone: float = 1.0
    at_once: float = 1.0


ONE = Threads()


def find_threads(session: Session, seconds: float, reopen: Reopen) -> Threads:
    """Choose the threads for runs of `session`, which take `seconds` on the one that it has."""
    most = cores()
    if session.device != "cpu" or most < 2 or seconds < WORTH_A_LOOK:
        return ONE
    found = ONE
    with suppress(CohortError):  # of a run or of opening: then it stays at one
        feeds = find_trial(session.run, session.inputs)(1)
        for count in counts_up_to(most):
            other = reopen(count)
            try:
                found = compare(session.run, other.run, feeds, count, most)
            finally:
                other.close()
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


def compare(one: Run, more: Run, feeds: Arrays, threads: int, most: int) -> Threads:
    """Measure runs on `threads` threads against runs on one, alone and with `most` at once."""
    runs = {1: one, threads: more}
    more(feeds)  # the first run allocates
    alone = _speeds(runs, feeds, 1)
    gain = alone[threads] / alone[1]
    if gain < GAIN:
        return Threads(1, threads, gain, 0.0)
    at_once = _speeds(runs, feeds, most)
    kept = at_once[threads] / at_once[1]
    return Threads(threads if kept >= KEPT else 1, threads, gain, kept)


def _speeds(runs: Mapping[int, Run], feeds: Arrays, at_once: int) -> dict[int, float]:
    """Runs per second by threads, each the best of its turns: a disturbance only slows."""
    best = dict.fromkeys(runs, 0.0)
    for _ in range(TURNS):
        for threads, run in runs.items():
            done, taken = run_together(run, feeds, at_once, TURN_SECONDS)
            best[threads] = max(best[threads], done / taken)
    return best
