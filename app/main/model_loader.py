"""The model loader: scans the models folder and has the registry load and unload."""

from __future__ import annotations

import asyncio
import gc
from time import monotonic

import structlog

from app.main.startup import show_models
from app.registry import Registry
from app.repository import QUIET_SECONDS, Problem, Snapshot, scan
from app.rollouts import Rollouts
from app.rollouts.watcher import RolloutWatcher
from app.settings import Settings

log = structlog.get_logger("cohort")

COLLECT_AFTER = 50_000, 20, 20
"""The collector's thresholds: Python's own 700 objects are one event-loop iteration with a crowd of
callers, all of them alive. Requests hold no reference cycles, so that there is little to collect.
"""

SETTLING_SECONDS = 10.0
"""How long an operator's `load` waits for files that are still being copied, at most."""


class ModelLoader:
    """Scans the models folder and has the registry load and unload what changed.

    settings: The models folder, and the address in the start-up table.
    registry: Loads and unloads.
    rollouts: The versions that they name are loaded, besides those of each model's policy.
    watcher: Reads the rollouts file and the decisions. Nothing is loaded before that, because it is
        not known which versions may receive traffic.
    """

    def __init__(
        self, settings: Settings, registry: Registry, rollouts: Rollouts, watcher: RolloutWatcher
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._rollouts = rollouts
        self._watcher = watcher
        self._lock = asyncio.Lock()
        self._snapshot: Snapshot | None = None

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that the last scan found on disk."""
        return self._snapshot.problems if self._snapshot is not None else ()

    async def reconcile(self) -> None:
        """Load and unload what changed on disk since the last call."""
        async with self._lock:  # the background task and operators call it
            if self._watcher.initialized:
                await self._reconcile()

    async def reconcile_settled(self) -> None:
        """Reconcile until no file is still being copied, for at most SETTLING_SECONDS."""
        await self.reconcile()
        until = monotonic() + SETTLING_SECONDS
        while self._snapshot is not None and self._snapshot.settling and monotonic() < until:
            await asyncio.sleep(QUIET_SECONDS / 4)
            await self.reconcile()

    async def _reconcile(self) -> None:
        first = not self._registry.settled
        before = self._snapshot
        snapshot = await asyncio.to_thread(scan, self._settings.models, before)
        self._snapshot = snapshot
        for problem in snapshot.problems:
            if before is None or problem not in before.problems:
                log.warning("models folder problem", problem=str(problem))
        await self._registry.reconcile(snapshot, self._rollouts.pinned)
        if first:
            gc.collect()
            gc.freeze()  # what is loaded stays: the collector need not traverse it
            gc.set_threshold(*COLLECT_AFTER)
            show_models(self._registry.catalog, snapshot, self._settings)
            log.info("first models loaded", models=len(self._registry.catalog))
