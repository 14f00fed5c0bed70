"""The engine of an ONNX model: a session, and the batcher that runs requests on it together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from app.batching import Batcher, BatchObserver, Reply, Ticket
from app.registry.engine import EngineDescription, LeaseCount
from app.registry.preparation import PreparedVersion
from app.scheduling import INLINE_SECONDS
from app.tensors import Arrays, TensorSpec

SHADOW_DELAY_MS = 20.0
"""How long shadow requests wait for others to share their run: one run of several costs less."""


class BatchedSession:
    """An open session with its batcher. Fulfils `Engine`.

    prepared: The version as it was opened, checked and profiled.
    wake: The scheduler's, called with a batcher that has requests.
    observe: Called with each event of the batcher.
    """

    __slots__ = (
        "_batcher", "_prepared", "_wake", "example", "inputs", "labels", "leases", "outputs",
        "timeout",
    )  # fmt: skip

    def __init__(
        self,
        prepared: PreparedVersion,
        *,
        wake: Callable[[Batcher], None],
        observe: BatchObserver,
    ) -> None:
        session, exclusive = prepared.session, prepared.exclusive
        self._prepared = prepared
        self._wake = wake
        self._batcher = Batcher(
            session.run,
            prepared.policy,
            wake=wake,
            observe=observe,
            run_exclusively=None if exclusive is None else exclusive.run,
            make_control=session.control,
            seconds_for=lru_cache(1024)(prepared.found.profile.seconds_for),
            row_cost=prepared.found.profile.row_cost(prepared.policy),
            device=session.device,
            padding=prepared.found.padding,
        )
        self.leases = LeaseCount()
        self.inputs: Sequence[TensorSpec] = session.inputs
        self.outputs: Sequence[TensorSpec] = session.outputs
        self.labels: Sequence[str] = _read_labels(session.metadata.properties.get("classes", "[]"))
        self.timeout = prepared.timeout
        self.example = prepared.example

    @property
    def waiting(self) -> int:
        """How many requests are queued."""
        return self._batcher.waiting

    @property
    def inline_rows(self) -> int:
        """How many requests of one row may be run at once on the event loop; 1: none."""
        batcher = self._batcher
        policy = batcher.policy
        inline = (
            policy.batches
            and not policy.max_queue_delay_ms
            and batcher.padding is None
            and batcher.device == "cpu"
            and batcher.seconds_for(policy.max_batch_size) <= INLINE_SECONDS
        )
        return policy.max_batch_size if inline else 1

    def submit(
        self, inputs: Arrays, reply: Reply, *, deadline: float = float("inf"), requests: int = 1
    ) -> Ticket:
        """Queue a request; see `Engine`."""
        return self._batcher.submit(inputs, reply, deadline=deadline, requests=requests)

    def run_now(
        self, inputs: Arrays, reply: Reply, *, arrived: float, rows: int, requests: int
    ) -> bool:
        """Run on the loop before returning; see `Engine`."""
        return self._batcher.run_now(inputs, reply, arrived=arrived, rows=rows, requests=requests)

    def side_queue(self, *, max_requests: int, shadow: bool) -> Batcher:
        """A second queue on the same session; see `Engine`."""
        session, exclusive, own = self._prepared.session, self._prepared.exclusive, self._batcher
        policy = replace(own.policy, max_queue_size=max_requests, max_queue_delay_ms=0)
        if shadow:
            # Half a queue is a full batch, or at high rates requests that wait would be dropped.
            rows = min(policy.max_batch_size, max_requests // 2)
            policy = replace(policy, max_batch_size=rows, max_queue_delay_ms=SHADOW_DELAY_MS)
        return Batcher(
            session.run,
            policy,
            wake=self._wake,
            observe=_ignore,
            run_exclusively=None if shadow or exclusive is None else exclusive.run,
            make_control=session.control,
            seconds_for=self._prepared.found.profile.seconds_for,
            row_cost=own.row_cost,
            device=session.device,
            shadow=shadow,
            padding=own.padding,
        )

    def describe(self) -> EngineDescription:
        """What it is made of, as of now."""
        session = self._prepared.session
        return EngineDescription(
            session.metadata,
            session.placement,
            session.device,
            self._batcher.policy,
            self._prepared.found,
        )

    def close(self) -> None:
        """Refuse what still waits, and let go of the model. Runs in flight finish."""
        self._batcher.close()
        self._prepared.close()


def _ignore(_: object) -> None:
    """Metrics of runs are of those that callers waited for."""


def _read_labels(text: str) -> list[str]:
    """Read the metadata property "classes", a JSON list; empty where it is not one."""
    try:
        classes = json.loads(text)
    except ValueError:
        return []
    return [str(one) for one in classes] if isinstance(classes, list) else []
