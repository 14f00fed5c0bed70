"""Side queues: runs of a version for copies of requests, which answer no caller."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from cohort.batching import Outputs
from cohort.connections.memory import count_bytes
from cohort.errors import CohortError, NotReady, Overloaded
from cohort.registry import BatchEngine, Cancellable, Catalog, RequestQueue, State
from cohort.tensors import Arrays, by_name, check_inputs, sent_specs

COPY_TIMEOUT_SECONDS = 10.0
"""Maximum time of a copy's wait for an idle slot: unloading a version waits for its copies."""

MAX_WAITING_BYTES = 64 * 2**20
"""Maximum size of all inputs in one side queue, unless there is only one request."""

CatalogSource = Callable[[], Catalog]
"""Returns the current catalog."""

CopyReply = Callable[[Arrays | None, CohortError | None], None]
"""Called once, with the outputs by name or the error."""


class SideQueue:
    """A second queue for a version, for copies of requests. Each copy holds it, as a lease does.

    catalog: Returns the catalog of loaded versions.
    model: The model's name.
    version: The version that runs the copies; it need not be ready yet.
    max_requests: Maximum of copies in the queue; further ones are rejected.
    shadow: True if copies run in batches and only while no other request waits for the device.
    """

    def __init__(
        self, catalog: CatalogSource, model: str, version: int, *, max_requests: int, shadow: bool
    ) -> None:
        self.model, self.version = model, version
        self._catalog = catalog
        self._max_requests = max_requests
        self._shadow = shadow
        self._engine: BatchEngine | None = None
        self._queue: RequestQueue | None = None
        self._bytes = self._copies = 0

    @property
    def room(self) -> int:
        """The number of further copies that fit, running ones included."""
        return max(self._max_requests - self._copies, 0)

    def submit(
        self,
        arrays: Arrays,
        reply: CopyReply,
        *,
        copies: int = 1,
        seconds: float = COPY_TIMEOUT_SECONDS,
    ) -> Cancellable:
        """Queue a copy, or several in one; `reply` is called once, on the event loop.

        seconds: The time limit, waiting included.

        Raises NotReady, Overloaded or InvalidInput.
        """
        engine = self._find()
        specs = engine.outputs
        check_inputs(sent_specs(engine.inputs, engine.optional_inputs, arrays), arrays)
        size = count_bytes(arrays.values())
        if self._bytes and self._bytes + size > MAX_WAITING_BYTES:
            raise Overloaded("the side queue is over its memory limit")
        queue = self._open(engine)

        def answered(outputs: Outputs | None, error: CohortError | None) -> None:
            self._bytes -= size
            self._copies -= copies
            engine.leases.release()
            reply(None if outputs is None else by_name(specs, outputs), error)

        deadline = monotonic() + min(seconds, COPY_TIMEOUT_SECONDS)
        ticket = queue.submit(arrays, answered, deadline=deadline, requests=copies)
        self._bytes += size
        self._copies += copies
        engine.leases.count += 1
        return ticket

    def close(self) -> None:
        """Cancel the waiting copies."""
        if self._queue is not None:
            self._queue.close()
        self._queue = self._engine = None

    def _find(self) -> BatchEngine:
        model = self._catalog().get(self.model)
        entry = model.versions.get(self.version) if model is not None else None
        if entry is None or entry.state is not State.READY:
            raise NotReady(f"version {self.version} is not ready")
        return entry.by_tensors(self.model)

    def _open(self, engine: BatchEngine) -> RequestQueue:
        if self._queue is None or self._engine is not engine:
            self.close()
            self._engine = engine
            self._queue = engine.side_queue(max_requests=self._max_requests, shadow=self._shadow)
        return self._queue
