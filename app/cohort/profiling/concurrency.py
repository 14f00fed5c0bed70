"""Throughput of concurrent runs of one model: rows per second with 1, 2, … runs at once.

`cohort profile` shows it. The server does not use it: `threads` chooses the threads of exclusive
runs from fewer measurements, and all models share the scheduler's slots.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from cohort.batching import RunFeeds
from cohort.profiling.measurement import GOOD_ENOUGH
from cohort.tensors import Arrays


@dataclass(frozen=True, slots=True)
class ConcurrentRuns:
    """Throughput of concurrent runs of a model.

    threads: The threads of each run.
    rows: The rows of each run.
    at_once: The number of concurrent runs.
    seconds: The average duration of one run.
    rows_per_second: The rows per second of all runs together.
    """

    threads: int
    rows: int
    at_once: int
    seconds: float
    rows_per_second: float


def run_concurrently(
    run: RunFeeds, feeds: Arrays, at_once: int, budget: float
) -> tuple[int, float]:
    """Run `feeds` over and over on `at_once` threads for `budget` seconds.

    Returns the number of runs and the seconds between the first start and the last end.
    Raises any error that a run raises.
    """
    counts = [0] * at_once
    failures: list[BaseException] = []
    ready = threading.Barrier(at_once + 1)

    def keep_running(place: int) -> None:
        ready.wait()
        until = perf_counter() + budget
        try:
            while not counts[place] or (perf_counter() < until and not failures):
                run(feeds)
                counts[place] += 1
        except Exception as error:  # noqa: BLE001  raised below
            failures.append(error)

    threads = [threading.Thread(target=keep_running, args=(place,)) for place in range(at_once)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = perf_counter()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(counts), perf_counter() - started


def measure_concurrency(
    runs: Mapping[int, RunFeeds],
    feeds: Mapping[int, Arrays],
    at_once: Sequence[int],
    *,
    budget: float,
) -> tuple[ConcurrentRuns, ...]:
    """Time each of `runs` (by threads) with each of `feeds` (by rows), in `budget` seconds.

    A single run that takes longer than its share of the budget is not interrupted.
    """
    share = budget / max(1, len(runs) * len(feeds) * len(at_once))
    found = []
    for threads, run in runs.items():
        for rows, arrays in feeds.items():
            run(arrays)  # the first run of a shape allocates
            for count in at_once:
                done, taken = run_concurrently(run, arrays, count, share)
                found.append(
                    ConcurrentRuns(threads, rows, count, taken * count / done, done * rows / taken)
                )
    return tuple(found)


def best_concurrency(found: Sequence[ConcurrentRuns]) -> ConcurrentRuns | None:
    """Return the runs with the most rows per second; prefer fewer threads if nearly equal.

    Only the runs with the largest number of rows are compared.
    """
    if not found:
        return None
    most = max(one.rows for one in found)
    compared = [one for one in found if one.rows == most]
    top = max(one.rows_per_second for one in compared)
    good = [one for one in compared if one.rows_per_second >= GOOD_ENOUGH * top]
    return min(good, key=lambda one: (one.threads, one.at_once))
