"""The model loader: scans the models folder and has the registry load and unload."""

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
from cohort.repository import EMPTY_FOLDER, QUIET_SECONDS, Problem, Snapshot, scan
from cohort.rollouts import Rollouts
from cohort.rollouts.watcher import RolloutWatcher
from cohort.session import clean_copies
from cohort.settings import Settings

log = structlog.get_logger("cohort")

COLLECT_AFTER = 50_000, 20, 20
"""The collector's thresholds: Python's own 700 objects are one event-loop iteration with a crowd of
callers, all of them alive. Requests hold no reference cycles, so that there is little to collect.
"""

SCAN_SHARE = 0.005
"""Of a core, for scans: a folder of thousands of versions is looked at less often."""

LONGEST_SCAN_PAUSE_SECONDS = 5.0
"""Between two scans, however long they take, unless `watch_seconds` are more."""

SLOW_SCAN_SECONDS = 10.0
"""From when on a scan that goes on is a problem: a file system that hangs answers nothing."""

STILL_LOADING_SECONDS = 10.0
"""How often it is said which of the first models are not loaded yet."""

SETTLING_SECONDS = 10.0
"""How long an operator's `load` waits for files that are still being copied, at most."""


class ModelLoader:
    """Scans the models folder and has the registry load and unload what changed.

    settings: The models folder.
    registry: Loads and unloads.
    rollouts: The versions that they name are loaded, besides those of each model's policy.
    watcher: Reads the rollouts file and the decisions. Nothing is loaded before that, and nothing
        of a model that an invalid file names: it is not known which versions may receive traffic.
    start_up: Says what was loaded first.
    remote: Keeps the folder in step with a remote repository; None where it is none.

    again: Set when there may be something to reconcile.
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
        self._registry = registry
        self._rollouts = rollouts
        self._watcher = watcher
        self._start_up = start_up
        self._lock = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        self._scan_seconds = 0.0  # of a core, by the last scan
        self._scan_began: float | None = None  # on the monotonic clock

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the models folder: what the last scan found, and one that hangs."""
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
        """What keeps the first models from being loaded; empty where it is only their loading."""
        if self._remote is not None and not self._remote.settled:
            return self._remote.loading_reason
        return self.hangs

    @property
    def scanning_seconds(self) -> float:
        """How long the scan has taken so far that goes on; 0 where none does."""
        return 0.0 if self._scan_began is None else monotonic() - self._scan_began

    @property
    def hangs(self) -> str:
        """What is to be said of a scan that takes long; empty where none does."""
        seconds = self.scanning_seconds
        if not seconds or seconds < SLOW_SCAN_SECONDS:
            return ""
        return f"has been looked at for {seconds:.0f} s: its file system may hang"

    @property
    def pause(self) -> float:
        """Seconds until the next scan should begin, so that scans take little of a core."""
        return min(self._scan_seconds / SCAN_SHARE, LONGEST_SCAN_PAUSE_SECONDS)

    async def reconcile(self) -> None:
        """Begin to load and unload what changed on disk since the last call."""
        async with self._lock:  # the background task and operators call it
            if self._remote is not None:
                pinned = self._registry.with_members(self._rollouts.pinned)
                self._remote.note(self._registry.catalog, pinned)
            if self._watcher.knows_models and (self._remote is None or self._remote.settled):
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
        loading = asyncio.ensure_future(self._registry.first_loaded())
        try:
            while not (await asyncio.wait([loading], timeout=STILL_LOADING_SECONDS))[0]:
                log.info("still loading", versions=self._registry.loading[:MAX_LISTED])
            await loading
        finally:
            loading.cancel()
        gc.collect()
        gc.freeze()  # what is loaded stays: the collector need not traverse it
        gc.set_threshold(*COLLECT_AFTER)
        snapshot = self._snapshot or Snapshot()
        await asyncio.to_thread(self._start_up.show, self._registry.catalog, snapshot)
        await asyncio.to_thread(clean_copies, self._settings.cache)

    async def _reconcile(self) -> None:
        before = self._snapshot
        self._scan_began = monotonic()
        try:
            snapshot, self._scan_seconds = await asyncio.to_thread(
                _timed_scan, self._settings.models_folder, before, self._registry.kinds
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
        """What was seen; models that wait for a valid rollouts file have no config."""
        held = self._watcher.held(snapshot.models)
        if not held:
            return snapshot
        models = {
            name: replace(found, config=None, problem=held[name]) if name in held else found
            for name, found in snapshot.models.items()
        }
        return replace(snapshot, models=models)


def _timed_scan(
    models: Path, before: Snapshot | None, kinds: Sequence[str]
) -> tuple[Snapshot, float]:
    """A scan, and the seconds that it took of a core."""
    started = thread_time()
    return scan(models, before, kinds=kinds), thread_time() - started
