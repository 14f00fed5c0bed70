"""Which worker a new connection goes to. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TAKEN_LATE_SECONDS = 0.5
"""Who has not taken a connection for so long gets no more, where another worker takes them."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What is known of a worker that can be given connections.

    pid: Its process.
    connections: How many it has, with those that it has not taken yet.
    given: How many it was given so far.
    waiting: For how many seconds the first of those has waited that it has not taken; 0: none does.
    ready: Whether it would answer that it is ready.
    """

    pid: int
    connections: int
    given: int = 0
    waiting: float = 0.0
    ready: bool = True


def choose_worker(loads: Iterable[WorkerLoad]) -> int | None:
    """The process that has the fewest connections; None where there is no worker.

    One that is ready comes first, then one that is not late, then the one that was given fewer.
    """

    def order(one: WorkerLoad) -> tuple[bool, bool, int, int]:
        return not one.ready, one.waiting > TAKEN_LATE_SECONDS, one.connections, one.given

    best = min(loads, key=order, default=None)
    return None if best is None else best.pid
