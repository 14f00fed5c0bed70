"""The model loader: scans the models folder and has the registry load and unload."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from time import monotonic, thread_time

import structlog

from app.main.startup import show_models
from app.registry import Registry
from app.repository import QUIET_SECONDS, Problem, Snapshot, scan
from app.rollouts import Rollouts
from app.rollouts.watcher import RolloutWatcher
from app.session import clean_copies
from app.settings import Settings

log = structlog.get_logger("cohort")

COLLECT_AFTER = 50_000, 20, 20
"""The collector's thresholds: Python's own 700 objects are one event-loop iteration with a crowd of
callers, all of them alive. Requests hold no reference cycles, so that there is little to collect.
"""

SCAN_SHARE = 0.005
"""Of a core, for scans: a folder of thousands of versions is looked at less often."""

LONGEST_SCAN_PAUSE_SECONDS = 5.0
"""Between two scans, however long they take, unless `watch_seconds` are more."""

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
        self._scan_seconds = 0.0  # of a core, by the last scan

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that the last scan found on disk."""
        return self._snapshot.problems if self._snapshot is not None else ()

    @property
    def pause(self) -> float:
        """Seconds until the next scan should begin, so that scans take little of a core."""
        return min(self._scan_seconds / SCAN_SHARE, LONGEST_SCAN_PAUSE_SECONDS)

    async def reconcile(self) -> None:
        """Begin to load and unload what changed on disk since the last call."""
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

    async def report_first(self) -> None:
        """Wait until the first models are loaded, show them, and clean up after those before."""
        await self._registry.first_loaded()
        gc.collect()
        gc.freeze()  # what is loaded stays: the collector need not traverse it
        gc.set_threshold(*COLLECT_AFTER)
        show_models(self._registry.catalog, self._snapshot or Snapshot(), self._settings)
        log.info("first models loaded", models=len(self._registry.catalog))
        await asyncio.to_thread(clean_copies, self._settings.cache)

    async def _reconcile(self) -> None:
        before = self._snapshot
        snapshot, self._scan_seconds = await asyncio.to_thread(
            _timed_scan, self._settings.models, before
        )
        self._snapshot = snapshot
        for problem in snapshot.problems:
            if before is None or problem not in before.problems:
                log.warning("models folder problem", problem=str(problem))
        self._registry.follow(snapshot, self._rollouts.pinned)


def _timed_scan(models: Path, before: Snapshot | None) -> tuple[Snapshot, float]:
    """A scan, and the seconds that it took of a core."""
    started = thread_time()
    return scan(models, before), thread_time() - started
