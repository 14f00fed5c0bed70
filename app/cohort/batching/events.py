"""The events that a batcher reports, as plain values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Ran(NamedTuple):
    """One run of the model, whether it succeeded or failed.

    rows: Rows in the run.
    requests: Requests in the run.
    seconds: Duration of the run.
    waits: Seconds in the queue, and the number of requests that waited for as long. Empty for a
        batch's second and later runs, so that each request counts once.
    padding: Share of padding among the elements of the padded inputs; default 0: none was needed.
    """

    rows: int
    requests: int
    seconds: float
    waits: Sequence[tuple[float, int]]
    padding: float = 0.0


Times = tuple[float, float, Ran | None]
"""The seconds that a request waited, those of its run, and the run; None: several runs, or none.

A plain tuple, because one is made for each request.
"""


class RequestCancelled(NamedTuple):
    """A caller cancelled its request. `stage` is "queued" or "running"."""

    stage: str


class BatchingDisabled(NamedTuple):
    """Batching was disabled because the outputs of a batch did not have one row per input row."""

    reason: str


class InlineStall(NamedTuple):
    """A run on the event loop took much longer than expected. `stopped`: True if it was stopped.

    Requests of a stopped run are answered by another one, on a thread.
    """

    seconds: float
    stopped: bool


class LeftLoop(NamedTuple):
    """Runs no longer execute on the event loop, because one was slow there and on a thread."""

    reason: str


BatchEvent = Ran | RequestCancelled | BatchingDisabled | InlineStall | LeftLoop

BatchObserver = Callable[[BatchEvent], None]
"""Called on the event loop with each event."""


def ignore(_: BatchEvent) -> None:
    """Observe nothing: a BatchObserver."""


def emit(observe: BatchObserver, event: BatchEvent) -> None:
    """Notify an observer; its failure does not affect callers."""
    try:
        observe(event)
    except Exception as bug:  # noqa: BLE001 - replies must still be called
        report(bug, "an observer failed")


def call_reply(reply: Callable[..., None], *answer: object) -> None:
    """Call a reply; its failure does not affect the others."""
    try:
        reply(*answer)
    except Exception as bug:  # noqa: BLE001 - the other replies must still be called
        report(bug, "a reply failed")


def report(bug: Exception, message: str) -> None:
    """Report a bug in a callback to the event loop's exception handler."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": bug})
