"""The engine of an ONNX model: an open session, and the batcher of its requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from app.batching import Batcher, BatchObserver, InlineRun, Reply, Ticket
from app.registry.engine import EngineDescription, LeaseCount
from app.registry.preparation import PreparedVersion
from app.scheduling import INLINE_SECONDS
from app.tensors import Arrays, TensorSpec

SHADOW_DELAY_MS = 20.0
"""Milliseconds that shadow requests are delayed to share runs, which take less time per request."""


class BatchedSession:
    """An open session with its batcher. Implements `Engine`.

    prepared: The version as it was opened, checked and profiled; closed with this engine.
    wake: Called with a batcher that has requests: `Scheduler.wake`.
    observe: Called with each BatchEvent of the batcher, but not those of side queues.
    inline_run: Where runs on the event loop are written down for the watchdog; default: nowhere.
    name: The model and version, for operators; default "".
    """

    __slots__ = (
        "_batcher", "_inline_run", "_prepared", "_wake", "example", "inputs", "labels", "leases",
        "outputs", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        prepared: PreparedVersion,
        *,
        wake: Callable[[Batcher], None],
        observe: BatchObserver,
        inline_run: InlineRun | None = None,
        name: str = "",
    ) -> None:
        session, exclusive = prepared.session, prepared.exclusive
        self._prepared = prepared
        self._wake = wake
        self._inline_run = inline_run
        self._batcher = Batcher(
            session.run,
            prepared.policy,
            wake=wake,
            observe=observe,
            run_exclusively=None if exclusive is None else exclusive.run,
            make_control=session.control,
            seconds_for=lru_cache(1024)(prepared.profile_result.profile.seconds_for),
            row_cost=prepared.profile_result.profile.row_cost(prepared.policy),
            device=session.device,
            padding=prepared.profile_result.padding,
            unpredictable=session.unpredictable,
            output_limit=prepared.output_limit,
            inline_run=inline_run,
            name=name,
        )
        self.leases = LeaseCount()
        self.inputs: Sequence[TensorSpec] = session.inputs
        self.outputs: Sequence[TensorSpec] = session.outputs
        self.labels: Sequence[str] = _read_labels(session.metadata.properties.get("classes", "[]"))
        self.timeout = prepared.timeout
        self.example = prepared.example

    @property
    def waiting(self) -> int:
        """The number of queued requests."""
        return self._batcher.waiting

    def room_for(self, priority: int) -> int:
        """How many more requests of one row and of this priority may be queued."""
        return self._batcher.room_for(priority)

    @property
    def inline_rows(self) -> int:
        """The rows that `run_now` may run in one run; see `Engine`."""
        batcher = self._batcher
        policy = batcher.policy
        inline = (
            policy.batches
            and not policy.max_queue_delay_ms
            and batcher.padding is None
            and batcher.inline.allowed
            and batcher.seconds_for(policy.max_batch_size) <= INLINE_SECONDS
        )
        return policy.max_batch_size if inline else 1

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> Ticket:
        """Queue a request; see `Engine`."""
        return self._batcher.submit(
            inputs,
            reply,
            deadline=deadline,
            timeout=timeout,
            requests=requests,
            priority=priority,
        )

    def run_now(
        self, inputs: Arrays, reply: Reply, *, arrived: float, rows: int, requests: int
    ) -> bool:
        """Run on the event loop before returning; see `Engine`."""
        return self._batcher.run_now(inputs, reply, arrived=arrived, rows=rows, requests=requests)

    def side_queue(self, *, max_requests: int, shadow: bool) -> Batcher:
        """Open another queue on the same session; see `Engine`."""
        session, exclusive, own = self._prepared.session, self._prepared.exclusive, self._batcher
        policy = replace(own.policy, max_queue_size=max_requests, max_queue_delay_ms=0)
        if shadow:
            # A batch is full at half the queue: while it runs, the other half takes new requests.
            rows = min(policy.max_batch_size, max_requests // 2)
            policy = replace(policy, max_batch_size=rows, max_queue_delay_ms=SHADOW_DELAY_MS)
        return Batcher(
            session.run,
            policy,
            wake=self._wake,
            observe=_ignore,
            run_exclusively=None if shadow or exclusive is None else exclusive.run,
            make_control=session.control,
            seconds_for=self._prepared.profile_result.profile.seconds_for,
            row_cost=own.row_cost,
            device=session.device,
            shadow=shadow,
            padding=own.padding,
            unpredictable=own.inline.unpredictable,
            output_limit=self._prepared.output_limit,
            inline_run=self._inline_run,
            name=self._batcher.name,
        )

    def describe(self) -> EngineDescription:
        """Describe the session and its batching as they are now."""
        session = self._prepared.session
        return EngineDescription(
            session.metadata,
            session.placement,
            session.device,
            self._batcher.policy,
            self._prepared.profile_result,
            self._batcher.inline.unpredictable,
            self._prepared.files,
        )

    def close(self) -> None:
        """Fail queued requests with NotReady and close the session. Runs in flight finish."""
        self._batcher.close()
        self._prepared.close()


def _ignore(_: object) -> None:
    """Metrics count the runs of callers' own requests only."""


def _read_labels(text: str) -> list[str]:
    """Read the metadata property "classes", a JSON list; empty where it is not one."""
    try:
        classes = json.loads(text)
    except ValueError:
        return []
    return [str(one) for one in classes] if isinstance(classes, list) else []
