"""Choice of the worker for a new connection. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TAKEN_LATE_SECONDS = 0.5
"""A worker that leaves a connection untaken for this time gets no more if another takes them."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The state of a worker that may receive connections.

    pid: Its process.
    connections: Its connections, including those that it has not taken yet.
    given: The number of connections passed to it so far.
    waiting: Seconds that the first untaken connection has waited; 0 without one.
    ready: True if it reports that it is ready.
    """

    pid: int
    connections: int
    given: int = 0
    waiting: float = 0.0
    ready: bool = True


def choose_worker(loads: Iterable[WorkerLoad]) -> int | None:
    """Return the process with the fewest connections; None if there is no worker.

    Ready workers take precedence, then workers that are not late; at equal counts, the one that was
    passed fewer so far.
    """

    def order(one: WorkerLoad) -> tuple[bool, bool, int, int]:
        return not one.ready, one.waiting > TAKEN_LATE_SECONDS, one.connections, one.given

    best = min(loads, key=order, default=None)
    return None if best is None else best.pid
