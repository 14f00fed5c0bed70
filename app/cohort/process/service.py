"""The composition root of a server: the core, the watched files, and HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import Any

from pydantic import SecretStr

from cohort.auth import Caller, KeyRing, KeyWatcher
from cohort.auth.authority import Authority
from cohort.connections.tls import TlsFiles, TlsWatcher
from cohort.http.calls import Match
from cohort.http.fast_path import Hot
from cohort.http.guards.heads import HeadRules
from cohort.http.mlflow.calls import match_as_invocations, match_invocations
from cohort.http.predict.calls import match_predict
from cohort.http.sagemaker.calls import match_invoke
from cohort.http.tls import Handshakes
from cohort.http.v1.calls import match_v1
from cohort.http.v2.infer import match_infer
from cohort.metrics import (
    Collector,
    KeyMetrics,
    LogLines,
    RolloutGauges,
    ServerMetrics,
    TlsMetrics,
    TrustMetrics,
    WebhookMetrics,
)
from cohort.observability.access_log import AccessLog
from cohort.observability.tracing import Tracer
from cohort.open_inference import Regions
from cohort.operating import ControlPlane, Lifecycle, ProcessHealth, ProcessPlane
from cohort.process.background import Step, repeat
from cohort.process.core import Core
from cohort.process.health_watch import HealthWatch
from cohort.process.key_files import issuer_of, watch_keys
from cohort.process.model_files import GUARD_INTERVAL_SECONDS, Background, ModelFiles
from cohort.process.notifications import make_webhooks, notification_of, notification_of_unbatched
from cohort.process.resources import available_connections, part_of, share_connections
from cohort.process.running import running
from cohort.registry import RegistryEvent, VersionUnbatched
from cohort.rollouts import RolloutEvent
from cohort.settings import Settings
from cohort.workers.host_plane import HostPlane
from cohort.workers.judging import Judging
from cohort.workers.siblings import Siblings

LAST_SPANS_SECONDS = 1.0
"""Time to export the last spans, if requests took all of the drain's time."""


class Service:
    """All parts of a server. `running` starts them, and stops them in reverse order.

    core: Runs the models.
    files: The files that it follows.
    keys: The callers.
    authority: Identifies callers.
    lifecycle: Determines whether the process is ready.
    process_plane: Answers operators' requests for this process.
    control_plane: Answers operators, for all workers if there are several.
    regions: The shared memory that callers have registered.
    hot: The fast HTTP protocol.
    failed: True if it failed after its start.
    ends_by: The end of the drain's time, in seconds on the monotonic clock.

    settings: The settings of the process.
    log: Counts log lines that were not written; default None: not counted.
    access_log: Receives a line for each request; default None: no access log.
    siblings: The other workers of this host; default: no other workers.
    tracer: Traces requests; default None: nothing is traced.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        log: LogLines | None = None,
        access_log: AccessLog | None = None,
        siblings: Siblings | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.settings = settings
        self.tracer = tracer
        self.ends_by = float("inf")
        self.siblings = siblings
        self.access_log = access_log
        self.failed = False
        self.keys = KeyRing(_secret(settings.admin_token), issuer=issuer_of(settings))
        self.key_watchers = watch_keys(settings, self.keys)
        self.authority = _authority(settings, self.keys)
        self.connections = share_connections(available_connections(), grpc=bool(settings.grpc_port))
        files = TlsFiles.of(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        self.tls = None if files is None else TlsWatcher(files)
        self.handshakes = Handshakes()
        self.webhooks, self.webhook_secret = make_webhooks(settings)
        self.core = core = Core(settings, traced=tracer is not None)
        self.files = ModelFiles(settings, core)
        core.registry_events.add(self._notify_of_version)
        core.rollout_events.add(self._notify_of_rollout)
        self.health = ProcessHealth(core.scheduler.faults)
        self.lifecycle = Lifecycle(
            core.registry,
            loading_reason=lambda: self.files.loading_reason,
            unready=self._unready,
            faults=self.health.faults,
            allow_empty=settings.allow_empty,
        )
        self.process_plane = ProcessPlane(
            core.registry,
            core.metrics,
            core.rollouts,
            self.lifecycle,
            reconcile=self.files.loader.reconcile_settled,
            save=self.files.rollouts.sync,
            problems=self._problems,
            default_chain=core.rules.default_chain,
        )
        self.control_plane: ControlPlane = self.process_plane
        self._judge: Step = self.files.rollouts.step
        if siblings is not None:
            self.control_plane = HostPlane(self.process_plane, siblings, core.rollouts)
            self._judge = Judging(siblings, core.rollouts, self.files.rollouts).step
        self.health_watch = HealthWatch(
            self.health, self.lifecycle, core.metrics.loop_lag, core.start_up
        )
        self.head_rules = HeadRules(settings.hosts, settings.cors_origins)
        self.regions = Regions(
            settings.shared_memory,
            most_bytes=settings.max_body_mb * 2**20,
            workers=settings.workers,
        )
        self.hot = Hot(
            core.data_plane,
            matches=tuple(self._matches()),
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
            root=settings.root_path,
            tracer=tracer,
        )
        self.keys.on_change(self.hot.forget_heads)
        core.metrics.register(*self._collectors(log))

    def _matches(self) -> Iterator[Match]:
        """Yield the inference APIs. A platform's own path comes first, except for V1 and V2."""
        settings = self.settings
        built_in = partial(match_infer, regions=self.regions), match_v1, match_invocations
        own = settings.predict_route
        if own and not any(match(own) for match in built_in):
            yield partial(match_as_invocations, at=own)
        if settings.multi_model:
            yield match_invoke
        yield match_predict
        yield from built_in

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all parts; the first models load while requests are already accepted.

        Raises ExceptionGroup if one of them fails.
        """
        try:
            for watcher in self.key_watchers:
                await watcher.check_file()
            async with running(self.core, self.files, self._background()):
                yield
        finally:
            self.handshakes.close()
            if self.access_log is not None:
                self.access_log.flush()  # last: requests may end until now
            if self.tracer is not None:
                await self.tracer.close(max(self.ends_by - monotonic(), LAST_SPANS_SECONDS))

    def _background(self) -> Iterator[Background]:
        follow = self.files.watch.follow
        yield partial(repeat, self._judge, GUARD_INTERVAL_SECONDS)
        yield self.health_watch.run
        for watcher in self.key_watchers:
            yield partial(follow, watcher.check_file)
        if self.tls is not None:
            yield partial(follow, self.tls.check_files)
        if self.webhook_secret is not None:
            yield partial(follow, self.webhook_secret.check_file)
        if self.webhooks is not None:
            yield partial(repeat, self.webhooks.run, 1.0)

    # -- reports to operators

    @property
    def _watched_keys(self) -> list[KeyWatcher[Any]]:
        trust = self.files.trust
        return [*self.key_watchers, *([] if trust is None else [trust])]

    def _unready(self) -> str:
        return next((one.unready for one in self._watched_keys if one.unready), "")

    def _problems(self) -> list[object]:
        keys = [problem for watcher in self.key_watchers for problem in watcher.problems]
        tls = [] if self.tls is None else self.tls.problems
        secret = [] if self.webhook_secret is None else self.webhook_secret.problems
        return [*self.files.problems, *keys, *tls, *secret]

    def _collectors(self, log: LogLines | None) -> Iterator[Collector]:
        core, files = self.core, self.files
        yield ServerMetrics(
            core.registry, self.health_watch, core.memory, files.loader, self.hot, log
        )
        yield RolloutGauges(core.rollouts, files.rollouts)
        if self.key_watchers:
            yield KeyMetrics(self.keys, self.key_watchers)
        if self.tls is not None:
            yield TlsMetrics(self.tls, self.handshakes.failed)
        if core.trust is not None and files.trust is not None:
            yield TrustMetrics(core.trust, files.trust)
        if self.webhooks is not None:
            yield WebhookMetrics(self.webhooks)
        if files.remote is not None:
            yield files.remote.metrics

    def _notify_of_version(self, event: RegistryEvent) -> None:
        if self.webhooks is not None and isinstance(event, VersionUnbatched):
            self.webhooks.send(notification_of_unbatched(event))

    def _notify_of_rollout(self, event: RolloutEvent) -> None:
        if self.webhooks is not None and (notification := notification_of(event)) is not None:
            self.webhooks.send(notification)


def _authority(settings: Settings, keys: KeyRing) -> Authority:
    """Return the authority: callers have keys and tokens, or any certificate of the CA."""
    certified = None
    if settings.tls_client_ca is not None and settings.api_keys is None:
        certified = Caller("certificate")
        keys.follow([])
    return Authority(
        keys,
        asks_callers=settings.api_keys is not None or certified is not None,
        certified=certified,
        metrics_key=_secret(settings.metrics_key),
    )


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
