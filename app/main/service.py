"""The parts of a process, who hears from whom, and what runs in the background."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic

import structlog

from app.auth import Authority
from app.control_plane import ControlPlane
from app.data_plane import DataPlane
from app.main.startup import announce
from app.metrics import Metrics, RolloutMetrics
from app.registry import (
    Failed,
    ModelEntry,
    Opened,
    Registry,
    RegistryEvent,
    TurnedOff,
    Unloaded,
    VersionEntry,
)
from app.repository import QUIET, Snapshot, scan
from app.rest.hot import Hot
from app.rest.predict import match_predict
from app.rest.v1 import match_v1
from app.rest.v2.infer import match_infer
from app.rollouts import DecisionStore, RolloutEvent, Rollouts, RuntimeDependencies
from app.rollouts.watcher import RolloutWatcher, log_event
from app.scheduling import Scheduler
from app.session import cores
from app.settings import Settings

log = structlog.get_logger("cohort")

GUARD_SECONDS = 1.0
"""How often variants are judged, and the decisions of other processes looked for."""

LAG_SECONDS = 0.25
"""How often the event loop's lag is looked at."""

SETTLING_SECONDS = 10.0
"""How long an operator's `load` waits for files that are still being copied."""


class Service:
    """Everything a process holds. `running` opens it and closes it in reverse."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        token = settings.admin_token
        self.authority = Authority(token.get_secret_value() if token else None)
        self.scheduler = Scheduler({"cpu": cores()})
        self.metrics = Metrics(
            models=self._models,
            rollouts=RolloutMetrics(
                live=lambda: [live.rollout for live in self.rollouts.live.values()],
                valid=lambda: self.rollout_watcher.valid,
            ),
            hot_requests=lambda: self.hot.answered,
        )
        self.registry = Registry(
            wake=self.scheduler.wake,
            count=lambda model, version: self.metrics.version(model, version).batcher,
            observe=self._heard,
            cache=settings.cache,
            pinned=lambda: self.rollouts.pinned,
        )
        self.rollouts = Rollouts(
            RuntimeDependencies(catalog=lambda: self.registry.catalog, wake=self.scheduler.wake),
            observe=self._rollout_changed,
        )
        self.rollout_watcher = RolloutWatcher(
            settings.rollouts, DecisionStore(settings.state), self.rollouts
        )
        self.data_plane = DataPlane(
            self.registry,
            self.metrics,
            self.rollouts,
            default_model=settings.default_model,
            max_concurrency=settings.max_concurrency,
            gather=self.scheduler.gather,
        )
        self.control_plane = ControlPlane(self.registry, self.metrics, self.rollouts)
        self.control_plane.reconcile = self._reconcile_settled
        self.control_plane.waits_for = self.rollout_watcher.waits_for
        self.control_plane.save = self.rollout_watcher.sync
        self._reconciling = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        self.control_plane.problems = self._problems
        self.hot = Hot(
            self.data_plane,
            matches=(match_predict, match_infer, match_v1),
            max_body=settings.max_body_mb * 2**20,
            keep_alive=settings.keep_alive_seconds,
            draining=lambda: self.control_plane.draining,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run from here on; the first models load while the listeners already answer."""
        async with AsyncExitStack() as stack:
            stack.callback(self.scheduler.close)  # last: batches in flight end on its threads
            stack.callback(self.registry.close)
            stack.callback(self.rollouts.close)  # copies hold their versions
            await self.rollout_watcher.check_file()
            await self.rollout_watcher.sync()
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            watch_seconds = self.settings.watch_seconds
            loops = [
                tasks.create_task(self._forever(self._reconcile, watch_seconds)),
                tasks.create_task(self._forever(self.rollout_watcher.check_file, watch_seconds)),
                tasks.create_task(self._forever(self.rollout_watcher.step, GUARD_SECONDS)),
                tasks.create_task(self._measure_lag()),
            ]
            stack.callback(lambda: [loop.cancel() for loop in loops])  # first: nothing new loads
            yield

    # -- loops

    async def _forever(self, step: Callable[[], object], seconds: float) -> None:
        """Take `step` every so many `seconds`, whatever becomes of one step; once where 0."""
        while True:
            try:
                await step()  # type: ignore[misc]
            except Exception:
                log.exception("a background step failed")
            if not seconds:
                return
            await asyncio.sleep(seconds)

    async def _reconcile_settled(self) -> None:
        """Reconcile with the disk as it is now, once files that were copied just now lie still."""
        await self._reconcile()
        until = monotonic() + SETTLING_SECONDS
        while self._snapshot is not None and self._snapshot.settling and monotonic() < until:
            await asyncio.sleep(QUIET / 4)
            await self._reconcile()

    async def _reconcile(self) -> None:
        async with self._reconciling:  # the loop's turn, or an operator's
            await self._look_and_load()

    async def _look_and_load(self) -> None:
        if not self.rollout_watcher.initialized:
            return
        first = not self.registry.settled
        before = self._snapshot
        snapshot = await asyncio.to_thread(scan, self.settings.models, before)
        self._snapshot = snapshot
        for problem in snapshot.problems:
            if before is None or problem not in before.problems:
                log.warning("repository", problem=str(problem))
        await self.registry.reconcile(snapshot)
        if first:
            gc.collect()
            gc.freeze()  # what is loaded stays: the collector need not walk it again and again
            announce(self.registry.catalog, snapshot, self.settings)
            log.info("first models are loaded", models=len(self.registry.catalog))

    async def _measure_lag(self) -> None:
        while True:
            due = monotonic() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.metrics.loop_lag.observe(max(0.0, monotonic() - due))

    def _problems(self) -> list[object]:
        found = self._snapshot.problems if self._snapshot is not None else ()
        return [*found, *self.rollout_watcher.problems(settled=self.registry.settled)]

    def _models(self) -> Iterable[ModelEntry]:
        return self.registry.catalog.values()

    # -- what is heard from below

    def _rollout_changed(self, event: RolloutEvent) -> None:
        self.metrics.rollouts.observe(event)
        log_event(event)

    def _heard(self, event: RegistryEvent) -> None:
        match event:
            case Opened(model, version, seconds):
                self.metrics.version(model, str(version.number)).load.observe(seconds)
                _log_opened(model, version, seconds)
            case Failed(model, number, reason, serving):
                log.error(
                    "version unavailable",
                    model=model,
                    version=number,
                    reason=reason,
                    older_files_serve_on=serving,
                )
            case Unloaded(model, number):
                log.info("version unloaded", model=model, version=number)
            case TurnedOff(model, number, reason):
                log.warning("batching turned off", model=model, version=number, reason=reason)


def _log_opened(model: str, version: VersionEntry, seconds: float) -> None:
    loaded = version.loaded
    if loaded is None:
        return
    about = log.bind(model=model, version=version.number)
    placement = loaded.session.placement
    about.info("version ready", seconds=round(seconds, 3), provider=placement.active)
    if placement.fell_back:
        about.warning(
            "provider fell back",
            wanted=placement.wanted[0],
            active=placement.active,
            reason=placement.reason,
        )
    if version.batching_off:
        about.warning("requests run one by one", reason=version.batching_off)
    if version.padding_off:
        about.warning("requests are not padded to share a run", reason=version.padding_off)
