"""The model loader: scans the models folder and makes the registry load and unload."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic, thread_time

import structlog

from cohort.errors import MAX_LISTED
from cohort.process.remote_models import RemoteModels
from cohort.process.startup import StartUp
from cohort.registry import Registry
from cohort.repository import EMPTY_FOLDER, QUIET_SECONDS, Layout, Problem, Snapshot, scan
from cohort.rollouts import Rollouts
from cohort.rollouts.watcher import RolloutWatcher
from cohort.session import clean_copies
from cohort.settings import Settings

log = structlog.get_logger("cohort")

COLLECT_AFTER = 50_000, 20, 20
"""The collector's thresholds.

Python's default of 700 objects is reached in one event-loop iteration with many callers, whose
objects are all alive. Requests have no reference cycles, so there is little to collect.
"""

SCAN_SHARE = 0.005
"""Share of a core that scans may use: folders with thousands of versions are scanned less often."""

MAX_SCAN_PAUSE_SECONDS = 5.0
"""Maximum pause between two scans, unless `watch_seconds` is longer."""

SLOW_SCAN_SECONDS = 10.0
"""A scan that takes longer is reported as a problem: its file system may hang."""

STILL_LOADING_SECONDS = 10.0
"""Interval of the log lines that list the first models still loading."""

SETTLING_SECONDS = 10.0
"""Maximum time that an operator's `load` waits for files that are still being copied."""


class ModelLoader:
    """Scans the models folder and makes the registry load and unload changed versions.

    settings: The settings with the models folder.
    registry: Loads and unloads.
    rollouts: Their versions are loaded in addition to those of each model's policy.
    watcher: Reads the rollouts file and the decisions. No model is loaded before that. Models in an
        invalid rollouts file are not loaded: the versions that may receive traffic are not known.
    start_up: Reports the first models.
    remote: Mirrors a remote repository in the folder; None: there is none.

    again: Set when there may be changes to reconcile.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        rollouts: Rollouts,
        watcher: RolloutWatcher,
        start_up: StartUp,
        remote: RemoteModels | None = None,
    ) -> None:
        self.again = asyncio.Event()
        self._remote = remote
        self._settings = settings
        self._layout = Layout.of(
            settings.model_name, links=settings.multi_model, remote=bool(settings.remote)
        )
        self._registry = registry
        self._rollouts = rollouts
        self._watcher = watcher
        self._start_up = start_up
        self._lock = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        self._scan_seconds = 0.0  # CPU time of the last scan
        self._scan_began: float | None = None  # on the monotonic clock

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the models folder: those of the last scan, and a scan that hangs."""
        folder = str(self._settings.models)
        slow = [Problem(folder, "", self.hangs)] if self.hangs else []
        if self._remote is not None:
            slow += self._remote.problems
        if (found := self._snapshot) is None:
            return tuple(slow)
        if not (found.models or found.problems or self._settings.allow_empty):
            slow.append(Problem(folder, "", EMPTY_FOLDER))
        return (*slow, *found.problems)

    @property
    def loading_reason(self) -> str:
        """Why the first models cannot be loaded; empty if they are loading."""
        if self._remote is not None and not self._remote.settled:
            return self._remote.loading_reason
        return self.hangs

    @property
    def scanning_seconds(self) -> float:
        """Time of the scan in progress; 0 without one."""
        return 0.0 if self._scan_began is None else monotonic() - self._scan_began

    @property
    def hangs(self) -> str:
        """The problem of a scan that takes long; empty if there is none."""
        seconds = self.scanning_seconds
        if not seconds or seconds < SLOW_SCAN_SECONDS:
            return ""
        return f"has been scanned for {seconds:.0f} s; its file system may hang"

    @property
    def pause(self) -> float:
        """Seconds until the next scan should begin, so that scans use little of a core."""
        return min(self._scan_seconds / SCAN_SHARE, MAX_SCAN_PAUSE_SECONDS)

    async def reconcile(self) -> None:
        """Begin to load and unload after changes on disk since the last call."""
        async with self._lock:  # the background task and operators call it
            if self._remote is not None:
                pinned = self._registry.with_members(self._rollouts.pinned)
                self._remote.note(self._registry.catalog, pinned)
            if self._watcher.knows_models and (self._remote is None or self._remote.settled):
                await self._reconcile()

    async def reconcile_settled(self) -> None:
        """Reconcile until no file is being copied, for at most SETTLING_SECONDS."""
        await self.reconcile()
        until = monotonic() + SETTLING_SECONDS
        while self._snapshot is not None and self._snapshot.settling and monotonic() < until:
            await asyncio.sleep(QUIET_SECONDS / 4)
            await self.reconcile()

    async def report_first(self) -> None:
        """Wait until the first models are loaded, show them, and delete old copies."""
        loading = asyncio.ensure_future(self._registry.first_loaded())
        try:
            while not (await asyncio.wait([loading], timeout=STILL_LOADING_SECONDS))[0]:
                log.info("still loading", versions=self._registry.loading[:MAX_LISTED])
            await loading
        finally:
            loading.cancel()
        gc.collect()
        gc.freeze()  # loaded objects are permanent: the collector can skip them
        gc.set_threshold(*COLLECT_AFTER)
        snapshot = self._snapshot or Snapshot()
        await asyncio.to_thread(self._start_up.show, self._registry.catalog, snapshot)
        await asyncio.to_thread(clean_copies, self._settings.cache)

    async def _reconcile(self) -> None:
        before = self._snapshot
        self._scan_began = monotonic()
        try:
            snapshot, self._scan_seconds = await asyncio.to_thread(
                _timed_scan,
                self._settings.models_folder,
                before,
                self._registry.kinds,
                self._layout,
            )
        finally:
            self._scan_began = None
        self._snapshot = snapshot
        for problem in snapshot.problems:
            is_new = before is None or problem not in before.problems
            if is_new and not self._start_up.pending:
                log.warning("models folder problem", problem=str(problem))
        self._registry.follow(self._without_held(snapshot), self._rollouts.pinned)

    def _without_held(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot; models that wait for a valid rollouts file have no config in it."""
        held = self._watcher.held(snapshot.models)
        if not held:
            return snapshot
        models = {
            name: replace(found, config=None, problem=held[name]) if name in held else found
            for name, found in snapshot.models.items()
        }
        return replace(snapshot, models=models)


def _timed_scan(
    models: Path, before: Snapshot | None, kinds: Sequence[str], layout: Layout
) -> tuple[Snapshot, float]:
    """Scan the folder; return the snapshot and the CPU seconds."""
    started = thread_time()
    return scan(models, before, kinds=kinds, layout=layout), thread_time() - started
