"""The composition root: the parts of a process, their observers, and the background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from math import inf
from time import monotonic

import structlog
from pydantic import SecretStr

from cohort.auth import Caller, KeyRing
from cohort.auth.authority import Authority
from cohort.batching import Watchdog
from cohort.connections.memory import MemoryBudget
from cohort.connections.tls import TlsFiles, TlsWatcher
from cohort.http.fast_path import Hot
from cohort.http.guards.heads import HeadRules
from cohort.http.mlflow.calls import match_invocations
from cohort.http.predict.calls import match_predict
from cohort.http.tls import Handshakes
from cohort.http.v1.calls import match_v1
from cohort.http.v2.infer import match_infer
from cohort.inspection import Inspected, InspectionLimits, Inspector
from cohort.metrics import (
    KeyMetrics,
    Metrics,
    RolloutMetrics,
    TlsMetrics,
    TrustMetrics,
    WebhookMetrics,
)
from cohort.observability.access_log import AccessLog
from cohort.operating import ControlPlane, Lifecycle, ProcessHealth, ProcessPlane
from cohort.process.key_files import issuer_of, watch_keys, watch_trust
from cohort.process.model_loader import ModelLoader
from cohort.process.notifications import make_webhooks, notification_of, notification_of_unbatched
from cohort.process.registry_log import RegistryLog
from cohort.process.remote_models import RemoteModels
from cohort.process.resources import (
    available_connections,
    part_of,
    return_memory,
    share_connections,
)
from cohort.process.startup import StartUp
from cohort.registry import (
    PACE_INTERVAL_SECONDS,
    ModelEntry,
    OnDemandRegistry,
    Registry,
    RegistryEvent,
    VersionReady,
    VersionUnbatched,
)
from cohort.repository import ModelConfig
from cohort.rollouts import RolloutEvent, Rollouts
from cohort.rollouts.watcher import RolloutWatcher, log_event
from cohort.scheduling import Scheduler
from cohort.serving import ConcurrencyLimit, DataPlane
from cohort.session import OrtRunControl, available_memory, cores, model_rules
from cohort.settings import Settings
from cohort.workers.host_plane import HostPlane
from cohort.workers.judging import Judging
from cohort.workers.siblings import Siblings

log = structlog.get_logger("cohort")

GUARD_INTERVAL_SECONDS = 1.0
"""How often variants are judged, and decisions of other processes are read."""

LAG_INTERVAL_SECONDS = 0.25
"""How often the lag of the event loop is measured, and the process's health looked at."""


class Service:
    """All parts of a process. `running` starts them, and stops them in reverse order.

    failed: Whether it ended by itself, after it had started.
    ready: Whether it was ready when its health was last looked at.

    settings: The settings of the process.
    log_lines_dropped: Returns how many log lines were not written, for the metrics; default: 0.
    access_log: Takes a line for each request; default None: there is none.
    siblings: The other workers of this host; default: none.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        log_lines_dropped: Callable[[], int] = int,
        access_log: AccessLog | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self.settings = settings
        self.siblings = siblings
        self.access_log = access_log
        self.failed = self.ready = False
        self.keys = KeyRing(_secret(settings.admin_token), issuer=issuer_of(settings))
        self.key_watchers = watch_keys(settings, self.keys)
        self.trust, trust_watchers = watch_trust(settings, lambda: self.registry)
        self._watched_keys = [*self.key_watchers, *trust_watchers]
        self.connections = share_connections(available_connections(), grpc=bool(settings.grpc_port))
        files = TlsFiles.of(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        self.tls = None if files is None else TlsWatcher(files)
        self.handshakes = Handshakes()
        certified = None
        if settings.tls_client_ca is not None and settings.api_keys is None:
            certified = Caller("certificate")
            self.keys.follow([])
        self.authority = Authority(
            self.keys,
            asks_callers=settings.api_keys is not None or certified is not None,
            certified=certified,
            metrics_key=_secret(settings.metrics_key),
        )
        self.webhooks, self.webhook_secret = make_webhooks(settings)
        self.scheduler = Scheduler({"cpu": cores()})
        self.memory = MemoryBudget(
            (available_memory() // 4 if settings.memory_mb is None else settings.memory_mb * 2**20)
            // settings.workers
        )
        self.remote = RemoteModels(settings) if settings.remote else None
        self.watchdog = Watchdog(OrtRunControl)
        self.health = ProcessHealth(self.scheduler.troubles)
        self.metrics = Metrics(
            models=self._models,
            serving=lambda: self.registry.serving,
            rollouts=RolloutMetrics(
                live=lambda: [live.rollout for live in self.rollouts.live.values()],
                valid=lambda: self.rollout_watcher.valid,
                state_problems=lambda: len(self.rollout_watcher.state_problems),
                evidence=lambda: list(self.rollouts.evidence()),
            ),
            hot_requests=lambda: self.hot.answered,
            memory=lambda: (self.memory.used, self.memory.maximum),
            ready=lambda: self.ready,
            folder_problems=lambda: len(self.model_loader.problems),
            folder_scan_seconds=lambda: self.model_loader.scanning_seconds,
            troubles=lambda: [trouble.kind for trouble in self.health.latest],
            keys=KeyMetrics(
                self.keys, valid=lambda: all(watcher.valid for watcher in self.key_watchers)
            )
            if self.key_watchers
            else None,
            trust=None
            if self.trust is None
            else TrustMetrics(self.trust, valid=lambda: trust_watchers[0].valid),
            tls=None if self.tls is None else TlsMetrics(self.tls, self.handshakes.failed),
            webhooks=None if self.webhooks is None else WebhookMetrics(self.webhooks),
            remote=None if self.remote is None else self.remote.metrics,
            log_lines_dropped=log_lines_dropped,
        )
        self.inspector = Inspector(
            InspectionLimits(settings.inspection_seconds, settings.inspection_mb),
            settings.cache,
            self._on_inspected,
        )
        rules = model_rules(
            settings.max_model_mb, settings.max_nodes, settings.custom_ops, settings.providers
        )
        self.start_up = StartUp(settings, rules.default_chain)
        self._registry_log = RegistryLog(tabled=lambda: self.start_up.pending)
        make_registry: Callable[..., Registry] = Registry
        if settings.max_loaded_models is not None:
            make_registry = partial(OnDemandRegistry, settings.max_loaded_models)
        self.registry = make_registry(
            wake=self.scheduler.wake,
            count=lambda model, version: self.metrics.version(model, version).observe_batch,
            observe=self._on_registry_event,
            cache=settings.cache,
            rules=rules,
            inspector=self.inspector,
            trust=self.trust,
            inline_run=self.watchdog.inline,
            started=lambda: self.scheduler.started,
        )
        self.rollouts = Rollouts(
            catalog=lambda: self.registry.catalog,
            observe=self._on_rollout_event,
        )
        self.rollout_watcher = RolloutWatcher(settings.rollouts, settings.state, self.rollouts)
        self.concurrency_limit = ConcurrencyLimit(
            part_of(settings.max_concurrency, settings.workers)
        )
        self.data_plane = DataPlane(
            self.registry,
            self.metrics,
            self.rollouts,
            default_model=settings.default_model,
            limit=self.concurrency_limit,
            memory=self.memory,
            gather=self.scheduler.gather,
        )
        self.model_loader = ModelLoader(
            settings, self.registry, self.rollouts, self.rollout_watcher, self.start_up, self.remote
        )
        self.lifecycle = Lifecycle(
            self.registry,
            loading_reason=lambda: (
                self.model_loader.loading_reason or self.rollout_watcher.loading_reason()
            ),
            unready=lambda: next((one.unready for one in self._watched_keys if one.unready), ""),
            troubles=self.health.troubles,
            allow_empty=settings.allow_empty,
        )
        self.process_plane = ProcessPlane(
            self.registry,
            self.metrics,
            self.rollouts,
            self.lifecycle,
            reconcile=self.model_loader.reconcile_settled,
            save=self.rollout_watcher.sync,
            problems=self._problems,
            default_chain=rules.default_chain,
        )
        self.control_plane: ControlPlane = self.process_plane
        self._judge: Callable[[], Awaitable[None]] = self.rollout_watcher.step
        if siblings is not None:
            self.control_plane = HostPlane(self.process_plane, siblings, self.rollouts)
            self._judge = Judging(siblings, self.rollouts, self.rollout_watcher).step
        self.head_rules = HeadRules(settings.hosts, settings.cors_origins)
        self.hot = Hot(
            self.data_plane,
            matches=(match_predict, match_infer, match_v1, match_invocations),
            max_body=settings.max_body_mb * 2**20,
            keep_alive=settings.keep_alive_seconds,
            max_connections=part_of(settings.max_connections or 0, settings.workers)
            or self.connections.http,
            max_connections_per_address=settings.max_connections_per_address,
            lifecycle=self.lifecycle,
            authority=self.authority if self.authority.asks_callers else None,
            rules=self.head_rules,
            access_log=access_log,
            cors=bool(settings.cors_origins),
        )
        self.keys.on_change(self.hot.forget_heads)
        self._looks = [
            self.rollout_watcher.check_file,
            *(watcher.check_file for watcher in self._watched_keys),
        ]
        if self.tls is not None:
            self._looks.append(self.tls.check_files)
        if self.webhook_secret is not None:
            self._looks.append(self.webhook_secret.check_file)
        self._wake_watches: list[Callable[[], None]] = []

    def look_at_files(self) -> None:
        """Look at the operator's files now: models, rollouts, keys, certificates."""
        log.info("looking at all files")
        for wake in self._wake_watches:
            wake()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background tasks; the first models load while requests are already accepted.

        Raises ExceptionGroup where one of them fails.
        """
        failure: Exception | None = None
        async with AsyncExitStack() as stack:
            if self.access_log is not None:
                stack.callback(self.access_log.flush)  # last: until then requests may end
            self.watchdog.start()
            stack.callback(self.watchdog.close)
            stack.callback(self.handshakes.close)
            stack.callback(self.scheduler.close)  # its threads finish batches in flight
            stack.callback(self.registry.close)
            stack.callback(self.inspector.close)
            stack.callback(self.rollouts.close)  # shadow requests hold versions
            for watcher in self._watched_keys:
                await watcher.check_file()
            await self.rollout_watcher.check_file()
            await self.rollout_watcher.sync()
            if self.remote is not None:
                self.remote.start(self.model_loader.again)
                self._wake_watches.append(self.remote.wake)
                stack.callback(self.remote.close)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            background = [
                tasks.create_task(self._repeat(self._judge, GUARD_INTERVAL_SECONDS)),
                tasks.create_task(
                    self._repeat(self.registry.look_at_profiles, PACE_INTERVAL_SECONDS)
                ),
                tasks.create_task(self._watch_health()),
                tasks.create_task(return_memory(self.memory)),
                tasks.create_task(self._try(self.model_loader.report_first)),
                tasks.create_task(
                    self._watch(
                        self.model_loader.reconcile,
                        lambda: self.model_loader.pause,
                        self.model_loader.again,
                    )
                ),
                *(tasks.create_task(self._watch(look)) for look in self._looks),
            ]
            if self.webhooks is not None:
                background.append(tasks.create_task(self._repeat(self.webhooks.run, 1.0)))
            stack.callback(lambda: [task.cancel() for task in background])  # no more loading
            stack.callback(self.data_plane.close)  # first: no new requests
            try:
                yield
            except Exception as error:  # noqa: BLE001 - the caller gets it as it is, in no group
                failure = error
        if failure is not None:
            raise failure

    # -- background tasks

    async def _repeat(self, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Call `step` every `seconds`, also after it failed."""
        while True:
            await self._try(step)
            await asyncio.sleep(seconds)

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except Exception:
            log.exception("a background step failed")

    async def _watch(
        self,
        look: Callable[[], Awaitable[None]],
        pause: Callable[[], float] = float,
        again: asyncio.Event | None = None,
    ) -> None:
        """Look at files every `watch_seconds`, and whenever `look_at_files` is called.

        pause: The seconds between two looks that it needs at least; default: none.
        again: Set when a look is due; default: one of its own.
        """
        again = again or asyncio.Event()
        self._wake_watches.append(again.set)
        while True:
            again.clear()
            await self._try(look)
            with suppress(TimeoutError):
                seconds = self.settings.watch_seconds
                async with asyncio.timeout(max(seconds, pause()) if seconds else None):
                    await again.wait()

    async def _watch_health(self) -> None:
        """Measure how late the event loop is, and log what is wrong with the process."""
        known: set[str] = set()
        while True:
            due = monotonic() + LAG_INTERVAL_SECONDS
            await asyncio.sleep(LAG_INTERVAL_SECONDS)
            lag = max(0.0, monotonic() - due)
            self.metrics.loop_lag.observe(lag)
            self.health.observe_lag(lag)
            troubles = self.health.troubles()
            for trouble in troubles:
                if trouble.kind not in known:
                    log.error("unwell", kind=trouble.kind, reason=str(trouble))
            if known and not troubles:
                log.info("well again")
            known = {trouble.kind for trouble in troubles}
            readiness = self.lifecycle.readiness()
            if readiness.ready and not self.ready:
                self.start_up.say_ready()
            elif not readiness.ready and self.ready:
                log.warning("not ready", reason=readiness.reason)
            self.ready = readiness.ready

    def _models(self) -> Iterable[ModelEntry]:
        return self.registry.catalog.values()

    def _problems(self) -> list[object]:
        rollouts = self.rollout_watcher.problems(settled=self.registry.settled)
        keys = [problem for watcher in self._watched_keys for problem in watcher.problems]
        tls = [] if self.tls is None else self.tls.problems
        secret = [] if self.webhook_secret is None else self.webhook_secret.problems
        return [*self.model_loader.problems, *rollouts, *keys, *tls, *secret]

    # -- events

    def _on_rollout_event(self, event: RolloutEvent) -> None:
        self.metrics.rollouts.observe(event)
        log_event(event)
        if self.webhooks is not None and (notification := notification_of(event)) is not None:
            self.webhooks.send(notification)

    def _on_inspected(self, inspected: Inspected) -> None:
        if self.start_up.pending:  # the table has what is harmful
            return
        log.info(
            "model inspected",
            model=inspected.path.parent.parent.name,
            version=inspected.path.parent.name,
            sha256=inspected.sha256,
            seconds=round(inspected.seconds, 3),
            harm=inspected.harm,
        )

    def _on_registry_event(self, event: RegistryEvent) -> None:
        match event:
            case VersionReady(model, version, seconds):
                counts = self.metrics.version(model, str(version.number))
                counts.load.observe(seconds)
                objective = (version.source.config or ModelConfig()).objective_ms
                counts.objective = inf if objective is None else objective / 1000
                held_back = self.registry.model(model).held_back.get(version.number, "")
                self._registry_log.ready(event, held_back)
                self.rollouts.begin_waiting()
            case _:
                self._registry_log.observe(event)
                if self.webhooks is not None and isinstance(event, VersionUnbatched):
                    self.webhooks.send(notification_of_unbatched(event))


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
