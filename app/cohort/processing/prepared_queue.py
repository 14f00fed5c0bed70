"""A queue of requests whose inputs are prepared and whose outputs are finished."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any

from cohort.batching import Outputs, Reply, Times
from cohort.connections.memory import count_bytes
from cohort.errors import CohortError, InferenceFailed, Overloaded
from cohort.observability.refusals import known_error
from cohort.processing.around import Around, Watch
from cohort.processing.workroom import Workroom
from cohort.registry import Cancellable, NotedEngine, NotedQueue, RequestNotes, RequestQueue
from cohort.tensors import Arrays

NEVER = float("inf")


class PreparedQueue:
    """A `RequestQueue` that prepares requests, runs them on another queue, and finishes them.

    around: The processing of inputs and outputs.
    queue: Runs the prepared requests.
    workroom: Threads and memory for work that is not short.
    most: Returns the maximum number of requests that are processed on threads at once; default: no
        limit.

    working: The number of requests that wait for a thread or are processed on one.
    """

    def __init__(
        self,
        around: Around,
        queue: RequestQueue,
        workroom: Workroom,
        most: Callable[[], float] = lambda: NEVER,
    ) -> None:
        self.around = around
        self.workroom = workroom
        self.queue = queue
        self.working = 0
        self._most = most

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = NEVER,
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> Cancellable:
        """See `RequestQueue`."""
        wanted: dict[str, Any] = {
            "deadline": deadline, "timeout": timeout, "requests": requests, "priority": priority
        }  # fmt: skip
        return self._submit_to(self.queue, inputs, reply, wanted)

    def submit_with(
        self, engine: NotedEngine, notes: RequestNotes, inputs: Arrays, reply: Reply, **wanted: Any
    ) -> Cancellable:
        """Submit a request with notes to an engine that accepts notes; see `submit`."""
        return self._submit_to(
            NotedQueue(engine, notes), inputs, reply, {"deadline": NEVER, "timeout": None, **wanted}
        )

    def _submit_to(
        self, queue: RequestQueue, inputs: Arrays, reply: Reply, wanted: dict[str, Any]
    ) -> Cancellable:
        if not (self.around.prepares or self.around.finishes):
            return queue.submit(inputs, reply, **wanted)
        self.check_room()
        request = PreparedRequest(self, queue, reply, wanted)
        request.begin(inputs)
        return request

    def check_room(self) -> None:
        """Raise Overloaded if the maximum number of requests is being processed."""
        if self.working and self.working >= self._most():
            raise Overloaded(f"{self.working} requests wait for their inputs to be prepared")

    def close(self) -> None:
        """See `RequestQueue`."""
        self.queue.close()


class PreparedRequest:
    """A `NotedTicket` of a request that is prepared, run and finished. Used on the event loop."""

    __slots__ = (
        "_done", "_future", "_loop", "_over", "_owner", "_reply", "_runs", "_taken", "_ticket",
        "_timer", "_wanted", "_watch",
    )  # fmt: skip

    remembered = False  # caches are in front of this queue

    def __init__(
        self, owner: PreparedQueue, runs: RequestQueue, reply: Reply, wanted: dict[str, Any]
    ) -> None:
        self._owner = owner
        self._runs = runs
        self._reply: Reply | None = reply
        self._wanted = wanted
        self._watch = Watch(wanted["deadline"], wanted["timeout"])
        self._loop = asyncio.get_running_loop()
        self._ticket: Cancellable | None = None
        self._future: Future[Any] | None = None  # the current work on a thread
        self._done: Callable[[Any], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over: Callable[[], None] | None = None
        self._taken = 0

    @property
    def times(self) -> Times | None:
        """See `Cancellable`."""
        return None if self._ticket is None else self._ticket.times

    def cancel(self) -> None:
        """See `Cancellable`."""
        if self._reply is None:
            return
        self._reply = None
        self._leave()
        if self._future is None and self._ticket is not None:
            self._ticket.cancel()
            if not self._ticket.when_over(self._end_run):
                self._give_back()

    def when_over(self, then: Callable[[], None]) -> bool:
        """See `Cancellable`."""
        running = self._ticket is not None and self._ticket.when_over(self._end_run)
        if running or self._future is not None:
            self._over = then
            return True
        return False

    def begin(self, inputs: Arrays) -> None:
        """Prepare and queue the inputs. Raises the errors of work that runs on the event loop."""
        around = self._owner.around
        if not around.prepares:
            self._queue(inputs)
        elif around.is_short(inputs):
            self._queue(around.prepare(inputs, self._watch))
        else:
            size = count_bytes(inputs.values())
            self._work(lambda: self._prepare(inputs), self._prepared, size)

    def _prepare(self, inputs: Arrays) -> Arrays:
        """Prepare the inputs on a thread."""
        around, watch = self._owner.around, self._watch
        watch()
        size = around.prepared_bytes(inputs, watch)
        self._owner.workroom.take(size)
        self._taken = size
        prepared = around.prepare(inputs, watch)
        self._taken = min(size, count_bytes(prepared.values()))  # frees temporary memory
        self._owner.workroom.give_back(size - self._taken)
        return prepared

    def _prepared(self, arrays: Arrays) -> None:
        try:
            self._queue(arrays)
        except CohortError as error:
            self._end(None, error)

    def _queue(self, arrays: Arrays) -> None:
        self._ticket = self._runs.submit(arrays, self._ran, **self._wanted)

    def _ran(self, outputs: Outputs | None, error: CohortError | None) -> None:
        around, watch = self._owner.around, self._watch
        if outputs is None or not around.finishes:
            self._end(outputs, error)
            return
        if not around.finishes_at_once(outputs):
            size = count_bytes(outputs)
            self._work(lambda: around.finish(outputs, watch), self._finished, size)
            return
        try:
            finished = around.finish(outputs, watch)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the caller gets a response
            self._end(None, known_error(failure))
        else:
            self._end(finished, None)

    def _finished(self, outputs: Outputs) -> None:
        self._end(outputs, None)

    def _end(self, outputs: Outputs | None, error: CohortError | None) -> None:
        reply, self._reply = self._reply, None
        self._give_back()
        if reply is not None:
            if outputs is None and error is None:
                error = InferenceFailed("no answer")
            reply(outputs, error)

    # -- work on threads

    def _work(self, work: Callable[[], Any], then: Callable[[Any], None], size: int) -> None:
        """Run work for `size` bytes on a thread, and pass its result to `then`."""
        self._owner.working += 1
        self._done = then
        if self._watch.deadline < NEVER:
            self._timer = self._loop.call_later(self._watch.seconds, self._end_late)
        loop, done = self._loop, self._work_done
        context = copy_context()  # the steps of a pipeline behind it belong to the same trace

        def do() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a response
                loop.call_soon_threadsafe(done, None, error, context=context)
            else:
                loop.call_soon_threadsafe(done, result, None, context=context)

        self._future = self._owner.workroom.submit(do, size)

    def _work_done(self, result: Any, error: Exception | None) -> None:
        self._owner.working -= 1
        self._future = None
        then, self._done = self._done, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reply is None:
            self._end_run()
        elif error is not None or then is None:
            self._end(None, None if error is None else known_error(error))
        else:
            then(result)

    def _end_late(self) -> None:
        """Fail the request: its deadline passed while it was processed or waited for a thread."""
        self._timer = None
        reply, self._reply = self._reply, None
        self._leave()
        if reply is not None:
            reply(None, self._watch.late())

    def _leave(self) -> None:
        """Stop the current work: no caller waits for the result."""
        self._watch.left = True
        if self._future is not None and self._future.cancel():
            self._work_done(None, None)

    def _end_run(self) -> None:
        self._give_back()
        over, self._over = self._over, None
        if over is not None:
            over()

    def _give_back(self) -> None:
        if self._taken:
            self._owner.workroom.give_back(self._taken)
            self._taken = 0
