"""Cached requests: the first request of a key runs, and others with that key wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any, Protocol

from cohort.batching import Outputs, Reply, Times
from cohort.errors import CohortError, DeadlineExceeded, InferenceFailed
from cohort.registry import Cancellable
from cohort.response_cache.store import Key
from cohort.tensors import Arrays


class RequestOwner(Protocol):
    """Owner of requests, which runs them and may cache their answers."""

    def run(self, request: CachedRequest) -> Cancellable:
        """Run a request, and pass its result to `ran`. Raises as `RequestQueue.submit` does."""

    def landed(self, request: CachedRequest, outputs: Outputs | None) -> None:
        """Handle the end of a run, and cache its answer if there is one."""

    def replaced(self, request: CachedRequest) -> None:
        """Make this request the running one of its key."""


class CachedRequest:
    """A request to a cache. Implements `NotedTicket`. Used on the event loop.

    owner: Runs the request.
    inputs, reply: The arrays by name, and the callback for the answer.
    deadline, timeout, priority: As in `RequestQueue.submit`.

    key: The cache key of the inputs; () if the request is not in the cache's table of runs.
    remembered: True if the answer comes from the cache or from another request's run.
    ticket: The ticket of the request's run.
    """

    key: Key = ()
    remembered = False
    first: CachedRequest | None = None  # the request that runs for it
    future: Future[Any] | None = None  # computes the key on a thread
    ticket: Cancellable | None = None
    _waiting: list[CachedRequest] | None = None  # requests that wait for this run
    _handle: asyncio.Handle | None = None

    def __init__(
        self,
        owner: RequestOwner,
        inputs: Arrays,
        reply: Reply,
        deadline: float,
        timeout: float | None,
        priority: int,
    ) -> None:
        self.owner = owner
        self.inputs = inputs
        self._reply: Reply | None = reply
        self.deadline = deadline
        self.timeout = timeout
        self.priority = priority

    @property
    def times(self) -> Times | None:
        """See `Cancellable`."""
        return None if self.ticket is None else self.ticket.times

    @property
    def left(self) -> bool:
        """Return True if the request was answered or cancelled."""
        return self._reply is None

    def cancel(self) -> None:
        """See `Cancellable`."""
        if self._reply is not None:
            self._reply = None
            self._leave()

    def when_over(self, then: Callable[[], None]) -> bool:
        """See `Cancellable`."""
        return self.ticket is not None and self.ticket.when_over(then)

    def run(self) -> None:
        """Begin the run. Raises as `RequestQueue.submit` does."""
        self.ticket = self.owner.run(self)

    def wait_for(self, first: CachedRequest) -> None:
        """Wait for the answer of another request's run."""
        self.first, self.remembered = first, True
        self.key = first.key
        if first._waiting is None:
            first._waiting = []
        first._waiting.append(self)
        self._stop_timer()
        self.set_timer()

    def answer_soon(self, outputs: Outputs) -> None:
        """Reply with a cached answer, after `submit` has returned."""
        self.remembered = True
        self._stop_timer()
        self._handle = asyncio.get_running_loop().call_soon(self.end, outputs, None)

    def ran(self, outputs: Outputs | None, error: CohortError | None) -> None:
        """Handle the end of the run, and answer all requests that wait for it."""
        waiting, self._waiting = self._waiting, None
        if waiting and outputs is None and isinstance(error, DeadlineExceeded):
            self.end(None, error)
            _hand_over(self, waiting)  # later requests may have more time
            return
        self.owner.landed(self, outputs)
        self.end(outputs, error)
        for request in waiting or ():
            request.end(outputs, error)

    def end(self, outputs: Outputs | None, error: CohortError | None) -> None:
        """Reply, once."""
        if self._handle is not None:
            self._stop_timer()
        reply, self._reply = self._reply, None
        if reply is not None:
            if outputs is None and error is None:
                error = InferenceFailed("no answer")
            reply(outputs, error)

    def set_timer(self) -> None:
        """Start a timer for the deadline, while waiting for work that does not check it."""
        seconds = self.deadline - monotonic()
        if seconds < float("inf"):
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(max(seconds, 0), self._late)

    def _late(self) -> None:
        reply, self._reply = self._reply, None
        self._leave()
        if reply is not None:
            reply(None, DeadlineExceeded(self.timeout or 0.0))

    def _leave(self) -> None:
        """Stop the timer, and the work that no other request waits for."""
        self._stop_timer()
        if self.future is not None:
            self.future.cancel()
        first = self.first or self
        if first is not self and first._waiting is not None and self in first._waiting:
            first._waiting.remove(self)
        if first.left and not first._waiting and first.ticket is not None:
            self.owner.landed(first, None)
            first.ticket.cancel()

    def _stop_timer(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def _hand_over(former: CachedRequest, waiting: list[CachedRequest]) -> None:
    """Run the first waiting request, and make the others wait for its answer."""
    for place, request in enumerate(waiting):
        request.first, request.remembered = None, False
        request.owner.replaced(request)
        try:
            request.run()
        except CohortError as error:
            request.end(None, error)
            continue
        for other in waiting[place + 1 :]:
            other.first = request
        request._waiting = waiting[place + 1 :]
        return
    former.owner.landed(waiting[-1], None)
