"""Measure a cache's cost per request: hits, and misses compared with the same engine without one.

    python -m benchmarks.response_cache

CPU time of the event loop's thread, of an engine that answers at once; the best of 7 rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import thread_time
from typing import Any

import numpy as np

from cohort.batching import Outputs, Reply
from cohort.errors import CohortError
from cohort.registry import RequestNotes
from cohort.response_cache import CacheCounts, CachedEngine
from cohort.tensors import Arrays
from tests.engines import ControlledEngine, ControlledRequest

REQUESTS = 3000
ROUNDS = 7
ANSWER: Outputs = [np.ones((1, 3), np.float32)]


class InstantEngine(ControlledEngine):
    """Answers before it returns."""

    def submit(self, inputs: Arrays, reply: Reply, **wanted: Any) -> ControlledRequest:
        reply(ANSWER, None)
        return TICKET


def ignore(outputs: Outputs | None, error: CohortError | None) -> None:
    """A reply."""


TICKET = ControlledRequest({}, ignore, 0.0, None, 1)


def timed(ask: Callable[[Arrays], object], inputs: list[Any]) -> float:
    """Microseconds a request."""
    begun = thread_time()
    for array in inputs:
        ask({"x": array})
    return (thread_time() - begun) / len(inputs) * 1e6


async def main() -> None:
    """Print a line for each width."""
    bare, notes = InstantEngine(), RequestNotes()
    with ThreadPoolExecutor(1) as pool:
        cached = CachedEngine(bare, 1 << 24, CacheCounts(), lambda work, size: pool.submit(work))
        for width in (4, 128, 4096):
            inputs = [np.random.rand(1, width).astype(np.float32) for _ in range(REQUESTS)]
            rounds = []
            for _ in range(ROUNDS):
                cached._store.clear()
                misses = timed(lambda x: cached.submit_with(notes, x, ignore, timeout=1.0), inputs)
                without = timed(lambda x: bare.submit(x, ignore, timeout=1.0), inputs)
                begun = thread_time()
                timed(
                    lambda x: cached.submit_with(notes, x, ignore, timeout=1.0),
                    inputs[-1:] * REQUESTS,
                )
                await asyncio.sleep(0)  # the replies
                hits = (thread_time() - begun) / REQUESTS * 1e6
                rounds.append((misses - without, hits))
            more, hit = np.min(rounds, axis=0)
            print(f"{width * 4} bytes: a hit {hit:.1f} µs, a miss {more:.1f} µs more than no cache")


if __name__ == "__main__":
    asyncio.run(main())
