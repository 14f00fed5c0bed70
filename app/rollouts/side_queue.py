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

COPY_TIMEOUT_SECONDS = 10.0
"""After which a copy that found no idle slot is given up: unloading a version waits for copies."""

MAX_WAITING_BYTES = 64 * 2**20
"""Of the inputs in one side queue."""

GATHER_MS = 20.0
"""How long copies for a shadow wait to run in one batch: that takes less than one by one."""


class RuntimeDependencies(NamedTuple):
    """Where versions are found, and who runs their batches: the catalog and the scheduler."""

    catalog: Callable[[], Catalog]
    wake: Callable[[Batcher], None]


CopyReply = Callable[[Arrays | None, CohortError | None], None]


class SideQueue:
    """A second queue for a version, for copies of requests. Each holds it, as a lease does.

    Args:
        dependencies: Where the version is found, and who runs its batches.
        model: The model's name.
        version: The version that runs the copies; it may be not ready yet.
        most: How many copies may wait; further ones are rejected.
        shadow: Run only while no other request waits for the device, in batches.
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
        self._dependencies = dependencies
        self._most = most
        self._shadow = shadow
        self._loaded: Loaded | None = None
        self._batcher: Batcher | None = None
        self._bytes = 0

    def submit(self, arrays: Arrays, reply: CopyReply) -> None:
        """Queue a copy; `reply` is called once, on the loop.

        Raises NotReady, Overloaded or InvalidInput.
        """
        loaded = self._find()
        specs = loaded.session.outputs
        check_inputs(loaded.session.inputs, arrays)
        size = sum([array.nbytes for array in arrays.values()])
        if self._bytes + size > MAX_WAITING_BYTES:
            raise Overloaded("the copies that wait take too much memory")
        batcher = self._open(loaded)

        def answered(outputs: Outputs | None, error: CohortError | None) -> None:
            self._bytes -= size
            loaded.release()
            reply(None if outputs is None else by_name(specs, outputs), error)

        batcher.submit(arrays, answered, deadline=monotonic() + COPY_TIMEOUT_SECONDS)
        self._bytes += size
        loaded.leases += 1

    def close(self) -> None:
        """Give up the copies that wait."""
        if self._batcher is not None:
            self._batcher.close()
        self._batcher = self._loaded = None

    def _find(self) -> Loaded:
        model = self._dependencies.catalog().get(self.model)
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
            wake=self._dependencies.wake,
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
    """Copies are not in the metrics of runs: no caller waits for them."""
