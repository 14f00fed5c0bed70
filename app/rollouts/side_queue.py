"""Runs of a version that answer no caller, beside those that do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import NamedTuple

from app.batching import Batcher, Outputs
from app.errors import CohortError, NotReady, Overloaded
from app.registry import Catalog, Loaded, State
from app.tensors import Arrays, by_name, check_inputs

SECONDS = 10.0
"""After which a copy that found no idle slot is given up: unloading waits for those that wait."""

MOST_BYTES = 64 * 2**20
"""Of inputs that wait."""


GATHER_MS = 20.0
"""How long copies for a shadow wait for company, at most: a run of several takes less."""


class RuntimeDependencies(NamedTuple):
    """Where versions are found, and who runs their batches."""

    catalog: Callable[[], Catalog]
    wake: Callable[[Batcher], None]


CopyReply = Callable[[Arrays | None, CohortError | None], None]


class SideQueue:
    """A second queue for a version, `most` requests long. What waits holds it, as a lease does.

    As a `shadow`, it runs only while nobody else waits for the device.
    """

    def __init__(
        self,
        dependencies: RuntimeDependencies,
        model: str,
        version: int,
        *,
        most: int,
        shadow: bool,
    ) -> None:
        self.model, self.version = model, version
        self._machinery = dependencies
        self._most = most
        self._shadow = shadow
        self._loaded: Loaded | None = None
        self._batcher: Batcher | None = None
        self._bytes = 0

    def submit(self, arrays: Arrays, reply: CopyReply) -> None:
        """Queue a copy; `reply` is called once. Raises NotReady, Overloaded or InvalidInput."""
        loaded = self._find()
        specs = loaded.session.outputs
        check_inputs(loaded.session.inputs, arrays)
        size = sum([array.nbytes for array in arrays.values()])
        if self._bytes + size > MOST_BYTES:
            raise Overloaded("the copies that wait are too large")
        batcher = self._open(loaded)

        def answered(outputs: Outputs | None, error: CohortError | None) -> None:
            self._bytes -= size
            loaded.release()
            reply(None if outputs is None else by_name(specs, outputs), error)

        batcher.submit(arrays, answered, deadline=monotonic() + SECONDS)
        self._bytes += size
        loaded.leases += 1

    def close(self) -> None:
        """Give up what waits."""
        if self._batcher is not None:
            self._batcher.close()
        self._batcher = self._loaded = None

    def _find(self) -> Loaded:
        model = self._machinery.catalog().get(self.model)
        entry = model.versions.get(self.version) if model is not None else None
        if entry is None or entry.state is not State.READY or entry.loaded is None:
            raise NotReady(f"version {self.version} is not ready")
        return entry.loaded

    def _open(self, loaded: Loaded) -> Batcher:
        if self._batcher is not None and self._loaded is loaded:
            return self._batcher
        self.close()
        session, own = loaded.session, loaded.batcher
        policy = replace(own.policy, max_queue_size=self._most, max_queue_delay_ms=0)
        if self._shadow:
            # Half a queue is a full batch, or at high rates copies that wait would be dropped.
            largest = min(policy.max_batch_size, self._most // 2)
            policy = replace(policy, max_batch_size=largest, max_queue_delay_ms=GATHER_MS)
        batcher = Batcher(
            session.run,
            policy,
            wake=self._machinery.wake,
            observe=_ignore,
            run_exclusively=None if self._shadow else own.run_exclusively,
            make_control=session.control,
            seconds_for=loaded.profile.seconds_for,
            row_cost=own.row_cost,
            device=session.device,
            shadow=self._shadow,
            padding=own.padding,
        )
        self._loaded, self._batcher = loaded, batcher
        return batcher


def _ignore(_: object) -> None:
    """Metrics of runs are of those that callers waited for."""
