"""Requests whose inputs are prepared before they are queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

from cohort.batching import Outputs, Reply
from cohort.connections.memory import count_bytes
from cohort.errors import Cancelled, CohortError, DeadlineExceeded, InferenceFailed, Overloaded
from cohort.observability.refusals import known_error
from cohort.processing.processing import Processing
from cohort.processing.workroom import Workroom
from cohort.registry import Cancellable, RequestQueue
from cohort.tensors import Arrays


class PreparedQueue:
    """Prepares requests, and has another queue run them. Implements `RequestQueue`.

    processing: What is done with inputs and outputs.
    queue: Runs what was prepared.
    workroom: Where that is done.
    most: Requests that may be in preparation at once; default: any number.

    preparing: How many are.
    """

    def __init__(
        self,
        processing: Processing,
        queue: RequestQueue,
        workroom: Workroom,
        most: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        self.processing = processing
        self.workroom = workroom
        self.queue = queue
        self.preparing = 0
        self._most = most

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> Cancellable:
        """See `RequestQueue`."""
        wanted: dict[str, Any] = {
            "deadline": deadline, "timeout": timeout, "requests": requests, "priority": priority
        }  # fmt: skip
        processing = self.processing
        if processing.finish:
            reply = _finishing(processing, reply)
        if not processing.steps:
            return self.queue.submit(inputs, reply, **wanted)
        self.check_room()
        request = PreparedRequest(self, inputs, reply, wanted)
        if processing.is_short(inputs):
            request.prepare_now()
        else:
            request.prepare_elsewhere()
        return request

    def check_room(self) -> None:
        """Raise Overloaded where as many are in preparation as may be."""
        if self.preparing and self.preparing >= self._most():
            raise Overloaded(f"{self.preparing} requests wait for their inputs to be prepared")

    def close(self) -> None:
        """See `RequestQueue`."""
        self.queue.close()


def _finishing(processing: Processing, reply: Reply) -> Reply:
    """A reply that gets outputs as callers do."""

    def finished(outputs: Outputs | None, error: CohortError | None) -> None:
        if outputs is None:
            reply(None, error)
        elif processing.finishes_at_once(outputs):
            reply(*_try(lambda: processing.finished(outputs)))
        else:
            work = asyncio.get_running_loop().run_in_executor(
                None, _try, lambda: processing.finished(outputs)
            )
            work.add_done_callback(lambda done: reply(*done.result()))

    return finished


def _try(make: Callable[[], Outputs]) -> tuple[Outputs | None, CohortError | None]:
    try:
        return make(), None
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a response
        return None, known_error(error)


class PreparedRequest:
    """A request from before its inputs are prepared. Implements `Cancellable`."""

    __slots__ = (
        "_deadline", "_error", "_future", "_inputs", "_loop", "_over", "_owner", "_prepared",
        "_reply", "_taken", "_ticket", "_timer", "_wanted", "_working",
    )  # fmt: skip

    def __init__(
        self, owner: PreparedQueue, inputs: Arrays, reply: Reply, wanted: dict[str, Any]
    ) -> None:
        self._owner = owner
        self._inputs: Arrays | None = inputs
        self._reply: Reply | None = reply
        self._wanted = wanted
        self._deadline: float = wanted["deadline"]
        self._loop = asyncio.get_running_loop()
        self._ticket: Cancellable | None = None
        self._future: Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over: Callable[[], None] | None = None
        self._prepared: Arrays | None = None
        self._error: CohortError | None = None
        self._working = False
        self._taken = 0

    @property
    def times(self) -> tuple[float, float] | None:
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
            if not self._ticket.when_over(self._end_run):
                self._give_back()
        elif self._future is not None and self._future.cancel():
            self._end_work()

    def when_over(self, then: Callable[[], None]) -> bool:
        """See `Cancellable`."""
        if self._working or (self._ticket is not None and self._ticket.when_over(self._end_run)):
            self._over = then
            return True
        return False

    def prepare_now(self) -> None:
        """Prepare its inputs on the event loop. Raises what that, or the queue, raises."""
        inputs, self._inputs = self._inputs, None
        assert inputs is not None  # noqa: S101 - it is prepared once
        self._prepared = self._owner.processing.prepare(inputs, self._check)
        self._queue()

    def prepare_elsewhere(self) -> None:
        """Prepare its inputs on a thread."""
        assert self._inputs is not None  # noqa: S101
        self._owner.preparing += 1
        self._working = True
        if self._deadline < float("inf"):
            left = max(self._deadline - monotonic(), 0)
            self._timer = self._loop.call_later(left, self._end_late)
        size = count_bytes(self._inputs.values())
        self._future = self._owner.workroom.submit(self._work, size)

    # -- on a thread

    def _check(self) -> None:
        """Raise where nobody waits for it any more."""
        if self._reply is None:
            raise Cancelled("the caller left")
        if monotonic() >= self._deadline:
            raise self._late()

    def _work(self) -> None:
        processing, inputs = self._owner.processing, self._inputs
        try:
            self._check()
            if inputs is not None:
                size = processing.prepared_bytes(inputs, self._check)
                self._owner.workroom.take(size)
                self._taken = size
                self._prepared = processing.prepare(inputs, self._check)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a response
            self._error = known_error(error)
        self._inputs = inputs = None
        self._loop.call_soon_threadsafe(self._end_work)

    # -- on the event loop again

    def _end_work(self) -> None:
        self._owner.preparing -= 1
        self._working = False
        self._inputs = self._future = None
        self._stop_timer()
        if self._reply is None or self._error is not None:
            self._prepared = None
            self._give_back()
            over, self._over = self._over, None
            self._end(None, self._error)
            if over is not None:
                over()
            return
        try:
            self._queue()
        except CohortError as error:
            self._end(None, error)

    def _queue(self) -> None:
        prepared, self._prepared = self._prepared, None
        assert prepared is not None  # noqa: S101
        self._ticket = self._owner.queue.submit(prepared, self._end, **self._wanted)

    def _end(self, outputs: Outputs | None, error: CohortError | None) -> None:
        reply, self._reply = self._reply, None
        self._give_back()
        if reply is not None:
            if outputs is None and error is None:
                error = InferenceFailed("no answer")
            reply(outputs, error)

    def _end_late(self) -> None:
        """Its time is over while its inputs are prepared, or wait for that."""
        self._timer = None
        reply, self._reply = self._reply, None
        if self._future is not None and self._future.cancel():
            self._end_work()
        if reply is not None:
            reply(None, self._late())

    def _end_run(self) -> None:
        self._give_back()
        over, self._over = self._over, None
        if over is not None:
            over()

    def _give_back(self) -> None:
        if self._taken:
            self._owner.workroom.give_back(self._taken)
            self._taken = 0

    def _late(self) -> DeadlineExceeded:
        timeout: float | None = self._wanted["timeout"]
        return DeadlineExceeded(0.0 if timeout is None else timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
