"""The events that a batcher reports, as plain values."""

from __future__ import annotations

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


class RequestCancelled(NamedTuple):
    """A caller cancelled its request. `stage` is "queued" or "running"."""

    stage: str


class BatchingDisabled(NamedTuple):
    """Batching was disabled because the outputs of a batch did not have one row per input row."""

    reason: str


BatchEvent = Ran | RequestCancelled | BatchingDisabled

BatchObserver = Callable[[BatchEvent], None]
"""Called on the event loop with each event."""
