"""Requests to a language model that come as tensors: prompts in, whole answers out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from cohort.batching import Outputs, Reply, Times
from cohort.errors import CohortError, InferenceFailed, Overloaded
from cohort.generation import GenerationReply, Piece, Usage
from cohort.generative.sequence import Prepared, TextTicket
from cohort.registry import TokenUse
from cohort.tensors import Arrays

LONG_CHARACTERS = 4096
"""Texts that are longer together are tokenized on a thread."""


class TextRows:
    """Prompts of one request of tensors. Implements `NotedTicket`; used on the event loop.

    prepare: Tokenizes the prompts, and checks their limits; called on a thread if they are long.
    size: The characters of the prompts.
    send: Queues one of them.
    reply: Called once, with all answers or the first error.
    choices: The choices of each prompt; default: one each.
    charge: As in `RequestNotes`; default None.

    If they are short, raises what `prepare` and `send` raise.
    """

    times: Times | None = None
    remembered = False

    def __init__(
        self,
        prepare: Callable[[], Sequence[Prepared]],
        size: int,
        send: Callable[[Prepared, GenerationReply], TextTicket],
        reply: Reply,
        *,
        choices: Sequence[int] = (),
        charge: Callable[[Sequence[Prepared]], TokenUse] | None = None,
    ) -> None:
        self._send = send
        self._charge = charge
        self._use: TokenUse | None = None
        self._choices = choices
        self._reply: Reply | None = reply
        self._texts: list[str] = []
        self._left = 0
        self._tickets: list[TextTicket] = []
        if size <= LONG_CHARACTERS:
            self._begin(prepare())
        else:
            preparing = asyncio.get_running_loop().run_in_executor(None, prepare)
            preparing.add_done_callback(self._prepared)

    @property
    def open(self) -> bool:
        """True until its reply or its cancellation."""
        return self._reply is not None

    def _prepared(self, done: asyncio.Future[Sequence[Prepared]]) -> None:
        if self._reply is None:
            return
        try:
            self._begin(done.result())
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a response
            self._fail(error if isinstance(error, CohortError) else InferenceFailed("no answer"))

    def _begin(self, prepared: Sequence[Prepared]) -> None:
        choices = self._choices or [1] * len(prepared)
        firsts = [0, *accumulate(choices)]
        self._left, self._texts = len(prepared), [""] * firsts[-1]
        if not prepared:
            self._answer()
            return
        if self._charge is not None:
            self._use = self._charge(prepared)
        try:
            for row, one in zip(firsts, prepared, strict=False):
                self._tickets.append(self._send(one, _RowReply(self, row)))
        except CohortError:
            self._stop()
            raise

    def pieces(self, row: int, pieces: Sequence[Piece]) -> None:
        """Add pieces to the texts of the rows from `row`."""
        if self._use is not None:
            self._use.pieces(pieces)
        for piece in pieces:
            self._texts[row + piece.choice] += piece.text

    def ended(self, error: CohortError | None) -> None:
        """Count the end of a row; the last one or an error is the reply."""
        self._left -= 1
        if error is not None:
            self._fail(error)
        elif not self._left:
            self._answer()

    def _fail(self, error: CohortError) -> None:
        reply = self._reply
        self.cancel()
        if reply is not None:
            reply(None, error)

    def _answer(self) -> None:
        reply, self._reply = self._reply, None
        self._settle()
        if reply is not None:
            outputs: Outputs = [np.array(self._texts, np.object_)]
            reply(outputs, None)

    def cancel(self) -> None:
        """See `Cancellable`."""
        self._reply = None
        self._stop()

    def _stop(self) -> None:
        for ticket in self._tickets:
            ticket.cancel()
        self._settle()

    def _settle(self) -> None:
        if self._use is not None:
            self._use.settle()

    def when_over(self, then: Callable[[], None]) -> bool:
        """See `Cancellable`."""
        return bool(self._tickets) and self._tickets[0].when_over(then)


@dataclass(frozen=True, slots=True)
class _RowReply:
    _rows: TextRows
    _row: int

    def pieces(self, pieces: Sequence[Piece]) -> None:
        self._rows.pieces(self._row, pieces)

    def ended(self, usage: Usage, error: CohortError | None) -> None:
        del usage
        self._rows.ended(error)


SubmitAside = Callable[[Arrays, Reply, float, float | None, int], TextRows]
"""Submits the inputs and the reply, with a deadline, a timeout and a priority."""


class SideQueue:
    """A queue of requests of tensors that metrics do not count. Implements `RequestQueue`.

    submit_aside: Submits a request.
    max_requests: The maximum of requests that wait or run.
    priority: Their priority.
    """

    def __init__(self, submit_aside: SubmitAside, max_requests: int, priority: int) -> None:
        self._submit, self._max, self._priority = submit_aside, max_requests, priority
        self._tickets: list[TextRows] = []

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> TextRows:
        """See `RequestQueue`."""
        self._tickets = [one for one in self._tickets if one.open]
        if len(self._tickets) >= self._max:
            raise Overloaded(f"{self._max} copied requests wait")
        ticket = self._submit(inputs, reply, deadline, timeout, self._priority)
        self._tickets.append(ticket)
        return ticket

    def close(self) -> None:
        """See `RequestQueue`."""
        for ticket in self._tickets:
            ticket.cancel()
        self._tickets = []
