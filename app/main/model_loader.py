"""Keeps what is loaded like what is on disk."""

from __future__ import annotations

import asyncio
import gc
from time import monotonic

import structlog

from app.main.startup import announce
from app.registry import Registry
from app.repository import QUIET_SECONDS, Problem, Snapshot, scan
from app.rollouts import Rollouts
from app.rollouts.watcher import RolloutWatcher
from app.settings import Settings

log = structlog.get_logger("cohort")

SETTLING_SECONDS = 10.0
"""How long an operator's `load` waits for files that are still being copied."""


class ModelLoader:
    """Scans the models folder and has the registry load and unload.

    Nothing is loaded before `watcher` knows the rollouts: until then nobody can say which versions
    may have traffic.
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
        """What the last scan found wrong on disk."""
        return self._snapshot.problems if self._snapshot is not None else ()

    async def reconcile(self) -> None:
        """Load and unload what changed on disk since the last time."""
        async with self._lock:  # the background loop's call, or an operator's
            if self._watcher.initialized:
                await self._reconcile()

    async def reconcile_settled(self) -> None:
        """Reconcile with the disk as it is now, once files that were copied just now lie still."""
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
                log.warning("repository", problem=str(problem))
        await self._registry.reconcile(snapshot, self._rollouts.pinned)
        if first:
            gc.collect()
            gc.freeze()  # what is loaded stays: the collector need not walk it again and again
            announce(self._registry.catalog, snapshot, self._settings)
            log.info("first models are loaded", models=len(self._registry.catalog))
