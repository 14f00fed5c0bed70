"""An engine that caches the answers of another engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Self

from cohort.batching import Outputs, Reply, RunResult
from cohort.errors import CohortError
from cohort.registry import (
    BatchEngine,
    Cancellable,
    EngineDescription,
    RequestNotes,
    RequestQueue,
    RunNow,
    TokenCounter,
)
from cohort.response_cache.counts import CacheCounts
from cohort.response_cache.requests import CachedRequest
from cohort.response_cache.store import HASHED_AT_ONCE, AnswerStore, Key, key_of
from cohort.session import AssignedNode
from cohort.tensors import Arrays, TensorSpec, held_bytes

NOTHING_NOTED = RequestNotes()

HashOnThread = Callable[[Callable[[], None], int], Future[Any]]
"""Runs work on a thread; the number is the bytes that it reads."""


class CachedEngine:
    """A caching engine. Implements `BatchEngine`, `NotedEngine` and `RequestOwner`.

    engine: Runs the model; closed with this engine, which shares its leases.
    maximum: Maximum bytes of cached answers.
    counts: The counts to update.
    on_thread: Computes the keys of large inputs on a thread.
    """

    def __init__(
        self, engine: BatchEngine, maximum: int, counts: CacheCounts, on_thread: HashOnThread
    ) -> None:
        self._engine = engine
        self._counts = counts
        self._store = AnswerStore(maximum, counts)
        self._running: dict[Key, CachedRequest] = {}
        self._past = PastIt(engine)
        self._on_thread = on_thread
        self._hashing = 0
        self.leases = engine.leases
        self.inputs: Sequence[TensorSpec] = engine.inputs
        self.optional_inputs: Sequence[TensorSpec] = engine.optional_inputs
        self.outputs: Sequence[TensorSpec] = engine.outputs
        self.labels = engine.labels
        if isinstance(engine, TokenCounter):  # this engine is one only if the other is
            self.count_tokens = engine.count_tokens
        self.timeout = engine.timeout
        self.example, self.example_outputs = engine.example, engine.example_outputs

    @property
    def by_tensors(self) -> Self:
        """Return this engine, because its requests are tensors."""
        return self

    @property
    def waiting(self) -> int:
        """Return the number of requests that are being hashed or are queued."""
        return self._engine.waiting + self._hashing

    @property
    def inline_rows(self) -> int:
        """Return 1, because each request is looked up alone."""
        return 1

    @property
    def run_now(self) -> RunNow:
        """Return a function that runs nothing; see `inline_rows`."""
        return _not_now

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> CachedRequest:
        """See `RequestQueue`."""
        return self.submit_with(
            NOTHING_NOTED, inputs, reply, deadline=deadline, timeout=timeout, priority=priority
        )

    def submit_with(
        self,
        notes: RequestNotes,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        priority: int = 0,
    ) -> CachedRequest:
        """See `NotedEngine`."""
        if notes.no_store:
            request = CachedRequest(self._past, inputs, reply, deadline, timeout, priority)
            request.run()
            return request
        request = CachedRequest(self, inputs, reply, deadline, timeout, priority)
        size = 0
        for array in inputs.values():
            size += held_bytes(array) if array.dtype.hasobject else array.nbytes
        if size <= HASHED_AT_ONCE:
            self._look_up(key_of(inputs), request)
        else:
            self._engine.check_room(priority)
            self._hash(request, size)
        return request

    def _hash(self, request: CachedRequest, size: int) -> None:
        loop, inputs = asyncio.get_running_loop(), request.inputs
        self._hashing += 1

        def work() -> None:
            loop.call_soon_threadsafe(hashed, key_of(inputs))

        def hashed(key: Key) -> None:
            request.future = None
            if request.left:
                return
            try:
                self._look_up(key, request)
            except CohortError as error:
                request.end(None, error)

        future = self._on_thread(work, size)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._less))
        request.future = future
        request.set_timer()

    def _less(self) -> None:
        self._hashing -= 1

    def _look_up(self, key: Key, request: CachedRequest) -> None:
        """Answer from the cache or a run in progress, or run it. Raises a CohortError."""
        found = self._store.get(key)
        if found is not None:
            self._counts.hits += 1
            request.answer_soon(found)
            return
        first = self._running.get(key)
        if first is not None:
            self._counts.hits += 1
            request.wait_for(first)
            return
        self._counts.misses += 1
        request.key = key
        self._running[key] = request
        try:
            request.ticket = self._engine.submit(
                request.inputs,
                request.ran,
                deadline=request.deadline,
                timeout=request.timeout,
                priority=request.priority,
            )
        except BaseException:
            self._running.pop(key, None)
            raise

    def run(self, request: CachedRequest) -> Cancellable:
        """See `RequestOwner`."""
        return self._engine.submit(
            request.inputs,
            request.ran,
            deadline=request.deadline,
            timeout=request.timeout,
            priority=request.priority,
        )

    def landed(self, request: CachedRequest, outputs: Outputs | None) -> None:
        """See `RequestOwner`."""
        key = request.key
        if self._running.get(key) is request:
            del self._running[key]
            if outputs is not None:
                self._store.put(key, outputs)

    def replaced(self, request: CachedRequest) -> None:
        """See `RequestOwner`."""
        self._running[request.key] = request

    def room_for(self, priority: int) -> int:
        """Return how many more one-row requests of this priority can be queued."""
        return self._engine.room_for(priority) - self._hashing

    def check_room(self, priority: int) -> None:
        """Raise Overloaded if no one-row request of this priority can be queued."""
        self._engine.check_room(priority)

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        """Open a queue on the same model without the cache; see `BatchEngine`."""
        return self._engine.side_queue(max_requests=max_requests, shadow=shadow)

    def describe(self) -> EngineDescription:
        """Describe the wrapped engine."""
        return self._engine.describe()

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        """Return the nodes of the model, each with the provider that runs it."""
        return self._engine.assigned_nodes()

    def close(self) -> None:
        """Reject new requests, fail queued ones with NotReady, and free the cache."""
        self._engine.close()
        self._store.clear()


class PastIt:
    """Owner of requests that bypass the cache. Implements `RequestOwner`."""

    def __init__(self, engine: BatchEngine) -> None:
        self._engine = engine

    def run(self, request: CachedRequest) -> Cancellable:
        """See `RequestOwner`."""
        return self._engine.submit(
            request.inputs,
            request.ran,
            deadline=request.deadline,
            timeout=request.timeout,
            priority=request.priority,
        )

    def landed(self, request: CachedRequest, outputs: Outputs | None) -> None:
        """See `RequestOwner`."""

    def replaced(self, request: CachedRequest) -> None:
        """See `RequestOwner`."""


def _not_now(inputs: Arrays, arrived: float, rows: int, requests: int, /) -> RunResult | None:
    del inputs, arrived, rows, requests
    return None
