"""One sequence: its state, and its queue of requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Protocol

from cohort.batching import Outputs, Reply, Times
from cohort.connections.memory import count_bytes
from cohort.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    Overloaded,
    quoted,
)
from cohort.registry import Cancellable, RequestQueue
from cohort.sequences.asked import AskedSequence
from cohort.sequences.state import StatePlan
from cohort.tensors import Arrays

MAX_WAITING = 64
"""Maximum number of waiting requests of one sequence."""


class SequenceOwner(Protocol):
    """Owner of sequences, which limits and counts their bytes.

    queue: Runs the requests.
    plan: The state tensors of the model.
    """

    @property
    def queue(self) -> RequestQueue: ...

    @property
    def plan(self) -> StatePlan: ...

    @property
    def most_bytes(self) -> int:
        """Return the maximum bytes of all states together."""

    def resize(self, sequence: Sequence, size: int) -> None:
        """Set the bytes that a sequence holds. If it raises Overloaded, nothing changes."""

    def used(self, sequence: Sequence) -> None:
        """Mark a sequence as just used."""

    def end(self, sequence: Sequence) -> None:
        """Remove a sequence."""


class Sequence:
    """The state between requests, and the waiting requests. Used on the event loop.

    key: The name of the client, and the id of the sequence.
    at: The time of the last use, in seconds on the monotonic clock.
    size: Bytes of the state.
    busy: True if a request runs or waits.
    """

    __slots__ = ("_owner", "_running", "_state", "_waiting", "at", "key", "size")

    def __init__(self, owner: SequenceOwner, key: tuple[str, str]) -> None:
        self._owner = owner
        self._state: Arrays | None = None
        self._running: SequenceRequest | None = None
        self._waiting: deque[SequenceRequest] = deque()
        self.key = key
        self.at = monotonic()
        self.size = 0

    @property
    def busy(self) -> bool:
        """Return True if a request runs or waits."""
        return self._running is not None or bool(self._waiting)

    @property
    def places(self) -> Iterable[int]:
        """Return the positions of the outputs that clients receive."""
        return self._owner.plan.places

    def add(self, request: SequenceRequest) -> None:
        """Run a request after all earlier ones. Raises a CohortError."""
        if self._running is None:
            try:
                self._run(request)
            except BaseException:
                self._rest()
                raise
            return
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded(
                f"{MAX_WAITING} requests of sequence {quoted(self.key[1])} wait for the ones "
                "before them"
            )
        self._waiting.append(request)
        request.wait()

    def _run(self, request: SequenceRequest) -> None:
        owner, inputs = self._owner, request.inputs
        state = self._state
        if request.asked.start:
            self._state = None
            state = owner.plan.begin(inputs, owner.most_bytes)
            owner.resize(self, max(count_bytes(state.values()), self.size))
        elif state is None:
            raise InvalidInput(
                f"sequence {quoted(self.key[1])} did not start: its first request failed"
            )
        elif problem := owner.plan.fits(state, inputs):
            raise InvalidInput(
                f"sequence {quoted(self.key[1])} must continue as it began: {problem}"
            )
        self._running = request
        try:
            request.submit(owner.queue, {**inputs, **state})
        except BaseException:
            self._running = None
            raise

    def answered(self, request: SequenceRequest, outputs: Outputs | None) -> CohortError | None:
        """Handle the end of a request's run; return an error if its state cannot be kept."""
        problem: CohortError | None = None
        if outputs is not None:
            state = self._owner.plan.next_state(outputs)
            try:
                self._owner.resize(self, count_bytes(state.values()))
                self._state = state
            except CohortError as error:
                problem, self._state = error, None
        self._done(request, ends=request.asked.end and outputs is not None)
        return problem

    def left(self, request: SequenceRequest) -> None:
        """Drop a cancelled request, and keep the state from before it."""
        if request is self._running:
            self._done(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def _done(self, request: SequenceRequest, *, ends: bool = False) -> None:
        if request is not self._running:
            return
        self._running = None
        if ends:
            self._state = None
        self._owner.used(self)
        while self._waiting and self._running is None:
            following = self._waiting.popleft()
            try:
                following.check_time()
                self._run(following)
            except Exception as error:  # noqa: BLE001 - on any error, its client gets a response
                following.fail(error)
        self._rest()

    def _rest(self) -> None:
        """Remove the sequence if it has no state and no requests."""
        if self._state is None and not self.busy:
            self._owner.end(self)


class SequenceRequest:
    """A request of a sequence. Implements `NotedTicket`. Used on the event loop."""

    __slots__ = (
        "_reply",
        "_sequence",
        "_ticket",
        "_timer",
        "_wanted",
        "asked",
        "inputs",
        "remembered",
    )

    def __init__(
        self,
        sequence: Sequence,
        asked: AskedSequence,
        inputs: Arrays,
        reply: Reply,
        wanted: dict[str, Any],
    ) -> None:
        self._sequence = sequence
        self._reply: Reply | None = reply
        self._wanted = wanted
        self._ticket: Cancellable | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.remembered = False
        self.asked = asked
        self.inputs = inputs

    @property
    def times(self) -> Times | None:
        """See `Cancellable`."""
        return None if self._ticket is None else self._ticket.times

    def cancel(self) -> None:
        """See `Cancellable`."""
        if self._reply is None:
            return
        self._reply = None
        self._stop_timer()
        if self._ticket is not None:
            self._ticket.cancel()
        self._sequence.left(self)

    def when_over(self, then: Callable[[], None]) -> bool:
        """See `Cancellable`."""
        return self._ticket is not None and self._ticket.when_over(then)

    def wait(self) -> None:
        """Wait for earlier requests, until the deadline."""
        seconds = self._wanted["deadline"] - monotonic()
        if seconds < float("inf"):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(seconds, 0), self._late)

    def submit(self, queue: RequestQueue, inputs: Arrays) -> None:
        """Submit the request to a queue. Raises as `RequestQueue.submit` does."""
        self._stop_timer()
        self._ticket = queue.submit(inputs, self._ran, **self._wanted)

    def check_time(self) -> None:
        """Raise DeadlineExceeded if the deadline has passed."""
        if monotonic() >= self._wanted["deadline"]:
            raise self._too_late()

    def fail(self, error: Exception) -> None:
        """Reply with an error, because the request was not run."""
        self._stop_timer()
        reply, self._reply = self._reply, None
        if reply is not None:
            known = error if isinstance(error, CohortError) else InferenceFailed("no answer")
            reply(None, known)

    def _ran(self, outputs: Outputs | None, error: CohortError | None) -> None:
        reply, self._reply = self._reply, None
        problem = self._sequence.answered(self, outputs)
        if reply is None:
            return
        if outputs is None or problem is not None:
            reply(None, problem or error or InferenceFailed("no answer"))
        else:
            places = self._sequence.places
            reply([outputs[place] for place in places], None)

    def _late(self) -> None:
        self._timer = None
        self._sequence.left(self)
        self.fail(self._too_late())

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(self._wanted["timeout"] or 0.0)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
