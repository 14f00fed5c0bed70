"""Simulate requests that arrive at random and wait in one line for c servers."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heapreplace
from math import log
from random import Random

WARM_UP_SHARE = 0.2
"""Share of the first requests that are not counted: the line is empty when they arrive."""


def simulate(
    rate: float,
    servers: int,
    seconds_by_requests: Mapping[int, float],
    *,
    share: float = 0.99,
    requests: int = 200_000,
    variation: float = 0.0,
    seed: int = 1,
) -> float:
    """Return the seconds from arrival to answer that this share of requests does not exceed.

    A free server takes the waiting requests at once, up to the largest key of
    `seconds_by_requests`. A run of a size between two keys takes as long as the next larger one.
    Runs that vary are log-normal; `variation` is their standard deviation over their mean. Only
    times within the simulated time span count: a line that grows without end gives a long time.
    """
    random = Random(seed)  # noqa: S311 - a simulation
    largest = max(seconds_by_requests)
    runs = _runs_by_size(seconds_by_requests)
    spread = log(1 + variation**2) ** 0.5  # standard deviation of the logarithm
    arrivals, now = [], 0.0
    for _ in range(requests):
        now += random.expovariate(rate)
        arrivals.append(now)
    free = [0.0] * servers  # when each server becomes free
    heapify(free)
    times: list[float] = []
    first = 0
    while first < requests:
        start = max(free[0], arrivals[first])
        after = first + 1
        while after < requests and after - first < largest and arrivals[after] <= start:
            after += 1
        run = runs[after - first]
        if spread:
            run *= random.lognormvariate(-spread * spread / 2, spread)
        heapreplace(free, start + run)
        # A request that did not wait takes exactly its run: no rounded difference of large times.
        times.extend(start - arrivals[one] + run for one in range(first, after))
        first = after
    counted = sorted(times[int(requests * WARM_UP_SHARE) :])
    return counted[min(len(counted) - 1, int(share * len(counted)))]


def _runs_by_size(seconds_by_requests: Mapping[int, float]) -> list[float]:
    """Return the seconds of a run of 0, 1, 2, … requests."""
    runs = [0.0]
    for size in sorted(seconds_by_requests):
        runs += [seconds_by_requests[size]] * (size + 1 - len(runs))
    return runs
