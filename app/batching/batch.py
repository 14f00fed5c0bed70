"""A request and the requests that share its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from app.batching.events import Ran
from app.batching.policy import Waiting
from app.errors import CohortError, InferenceFailed, InvalidInput
from app.tensors import Array, Arrays

if TYPE_CHECKING:
    from app.batching.batcher import Batcher

Outputs = list[Array]
Reply = Callable[[Outputs | None, CohortError | None], None]


class Control(Protocol):
    """A run's emergency brake, pulled from another thread."""

    def stop(self) -> None: ...


Run = Callable[[Arrays, Any], Outputs]
"""Takes the inputs and a Control of the session's own kind, or None."""


class Ticket:
    """One request between `submit` and its reply. `reply` is None once answered or left."""

    __slots__ = ("arrived", "batch", "batcher", "deadline", "inputs", "key", "reply", "rows")

    def __init__(
        self, batcher: Batcher, inputs: Arrays, reply: Reply, arrived: float, deadline: float
    ) -> None:
        self.batcher = batcher
        self.inputs = inputs
        self.reply: Reply | None = reply
        self.arrived = arrived
        self.deadline = deadline
        self.rows, self.key = batcher.place(inputs)
        self.batch: Batch | None = None

    def cancel(self) -> None:
        """Leave: the queue forgets the request, and a run nobody waits for any more is stopped."""
        if self.reply is not None:
            self.reply = None
            self.batcher.left(self)


class Batch:
    """Requests that share a run, from being cut until everyone is answered."""

    __slots__ = ("answers", "batcher", "control", "expected", "rows", "runs", "tickets", "waits")

    def __init__(self, batcher: Batcher, tickets: list[Ticket], now: float) -> None:
        self.batcher = batcher
        self.tickets = tickets
        self.rows = sum([ticket.rows for ticket in tickets])
        self.waits = [now - ticket.arrived for ticket in tickets]
        self.expected = batcher.seconds_for(self.rows)
        self.control: Control | None = None
        self.answers: list[Outputs | CohortError] = []
        self.runs: list[Ran] = []

    def execute(self) -> None:
        """Run the model, on any thread, and leave one answer per request in `answers`.

        A run that fails because of its input is retried in halves until the culprit stands alone:
        at most 2n - 1 runs for n requests, of which a single culprit causes 2 log2(n).
        """
        try:
            self._run(self.tickets)
        except Exception as error:  # noqa: BLE001 - a bug of ours: everyone still gets an answer
            failure = InferenceFailed("the server failed while running this batch")
            failure.__cause__ = error
            self.answers += [failure] * (len(self.tickets) - len(self.answers))

    def _run(self, tickets: list[Ticket]) -> None:
        if all(ticket.reply is None for ticket in tickets):
            self.answers += [GONE] * len(tickets)  # nobody waits for these any more
            return
        try:
            self.answers += self._run_together(tickets)
        except _RowsDoNotFollow as error:
            self.batcher.cannot_batch = str(error)
            for ticket in tickets:
                self._run([ticket])
        except (InvalidInput, InferenceFailed) as error:
            if len(tickets) == 1 or not _blames_input(error):
                self.answers += [error] * len(tickets)
            else:
                half = len(tickets) // 2
                self._run(tickets[:half])
                self._run(tickets[half:])

    def _run_together(self, tickets: list[Ticket]) -> list[Outputs]:
        started = monotonic()
        rows = self.rows if tickets is self.tickets else sum([ticket.rows for ticket in tickets])
        try:
            if len(tickets) == 1:
                return [self.batcher.run(tickets[0].inputs, self.control)]
            names = tickets[0].inputs
            feeds = {name: np.concatenate([one.inputs[name] for one in tickets]) for name in names}
            return split(self.batcher.run(feeds, self.control), tickets, rows)
        finally:
            waits = () if self.runs else self.waits
            self.runs.append(Ran(rows, len(tickets), monotonic() - started, waits))


GONE = InferenceFailed("the caller left", blames_input=False)


class _RowsDoNotFollow(Exception):
    pass


def split(outputs: Outputs, tickets: Sequence[Waiting], rows: int) -> list[Outputs]:
    """Cut each output along axis 0 into one part per request, as views.

    Raises _RowsDoNotFollow where an output does not have one row per input row.
    """
    for position, output in enumerate(outputs):
        if output.__class__ is not np.ndarray or not output.ndim or output.shape[0] != rows:
            shape = getattr(output, "shape", "not a tensor")
            raise _RowsDoNotFollow(f"{rows} input rows gave output {position} of shape {shape}")
    parts = []
    start = 0
    for ticket in tickets:
        end = start + ticket.rows
        parts.append([output[start:end] for output in outputs])
        start = end
    return parts


def _blames_input(error: CohortError) -> bool:
    return not isinstance(error, InferenceFailed) or error.blames_input
