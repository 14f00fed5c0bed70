"""Autoscaling on the time that requests spend in the queue."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

QUEUE_SECONDS, BUSY_SECONDS = "queue_seconds", "busy_seconds"
"""The statistics of a replica: mean time in the queue, and run time per second."""

ENOUGH = 0.5
"""Share of the target below which replicas may be removed."""

BUSY = 0.6
"""Run time per second that a replica should have after others were removed."""


def wanted_replicas(replicas: int, queue_seconds: float, busy_seconds: float, target: float) -> int:
    """Return the number of replicas that is right for the last interval.

    queue_seconds: The mean time of requests in the queue.
    busy_seconds: The run time per second, of all replicas together.
    target: The time in the queue above which replicas are added, in seconds.

    At most twice as many are added at a time, since the queue of a replica that is overloaded grows
    without limit.
    """
    if queue_seconds > target:
        return max(replicas + 1, ceil(replicas * min(queue_seconds / target, 2)))
    if queue_seconds < target * ENOUGH:
        return min(replicas, max(ceil(busy_seconds / BUSY), 1))
    return replicas


class QueueTimePolicy:
    """A policy of Ray Serve. `queue_ms` is the target."""

    def __init__(self, queue_ms: float) -> None:
        self._target = queue_ms / 1000

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas; Ray applies its limits and delays."""
        found: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        queue = [*found.get(QUEUE_SECONDS, {}).values()]
        replicas = context.current_num_replicas
        if not queue:
            return context.target_num_replicas, {}
        busy = sum(found.get(BUSY_SECONDS, {}).values())
        return wanted_replicas(replicas, sum(queue) / len(queue), busy, self._target), {}
