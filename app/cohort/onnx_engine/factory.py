"""Makes the engines of versions with an ONNX model, and checks their profiles in service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from weakref import WeakKeyDictionary

from cohort.batching import BatchEvent, BatchingDisabled, BatchObserver, InlineRun
from cohort.onnx_engine.batched_session import BatchedSession
from cohort.onnx_engine.measurer import Measurer
from cohort.onnx_engine.opening import VersionOpener
from cohort.onnx_engine.preparation import PreparedVersion, prepare_version
from cohort.onnx_engine.rechecks import Rechecks
from cohort.registry import Measured, ProfileStale, Site, Source, Unmeasured
from cohort.repository import MODEL_FILE, Published
from cohort.scheduling import RunQueue
from cohort.session import CancellationToken, Signature


class OnnxEngines:
    """Opens `model.onnx`, and batches its requests. Implements `EngineFactory`.

    wake: Called with a queue that has requests: `Scheduler.wake`.
    started: Returns the number of runs started so far: `Scheduler.started`; default: 0.
    count: Makes the observer that counts a version's batches, from its model and version.
    opener: Opens the versions.
    inline_run: Records runs on the event loop for the watchdog; default: no record.
    """

    file = MODEL_FILE

    def __init__(
        self,
        *,
        wake: Callable[[RunQueue], None],
        started: Callable[[], int] = int,
        count: Callable[[str, str], BatchObserver],
        opener: VersionOpener,
        inline_run: InlineRun | None = None,
    ) -> None:
        self._wake, self._count = wake, count
        self._opener = opener
        self._inline_run = inline_run
        self._measurer = Measurer(wake=wake, started=started)
        self._rechecks = Rechecks(wake=wake, started=started)
        self._serving = WeakKeyDictionary[BatchedSession, Site]()

    def open(self, source: Source, token: CancellationToken) -> OpenedModel:
        """See `EngineFactory`."""
        return OpenedModel(prepare_version(source, self._opener, token), self)

    def start(self, prepared: PreparedVersion, site: Site) -> BatchedSession:
        """Serve a version, and measure it in idle moments unless its profile is complete."""
        count = self._count(site.model, str(site.number))

        def observe(event: BatchEvent) -> None:
            count(event)
            if event.__class__ is BatchingDisabled:
                prepared.keep_unbatched(event.reason)
            site.observe(event)

        engine = BatchedSession(
            prepared,
            wake=self._wake,
            observe=observe,
            inline_run=self._inline_run,
            rechecks=self._rechecks,
            name=f"model {site.model}, version {site.number}",
        )
        self._serving[engine] = site
        if not engine.profile.complete:
            self._measure(engine, site)
        return engine

    def check_engines(self) -> None:
        """Measure each version again whose profile does not match its runs."""
        now = monotonic()
        for engine, site in list(self._serving.items()):
            if not engine.closed and (reason := engine.check_pace(now)):
                site.observe(ProfileStale(reason))
                self._measure(engine, site, fresh=True)

    def rest(self) -> None:
        """End idle model inspection processes; new ones start when needed."""
        inspector = self._opener.inspector
        if inspector is not None and inspector.busy:
            asyncio.get_running_loop().run_in_executor(None, inspector.rest)

    def close(self) -> None:
        """Stop all measurements and rechecks of requests."""
        self._measurer.close()
        self._rechecks.close()

    def _measure(self, engine: BatchedSession, site: Site, *, fresh: bool = False) -> None:
        self._measurer.measure(
            site.model,
            site.number,
            engine,
            lambda: site.observe(Measured(engine, engine.profile, engine.unbatched)),
            lambda reason, again_in: site.observe(Unmeasured(engine, reason, again_in)),
            fresh=fresh,
        )


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A version that is prepared. Implements `OpenedVersion`."""

    _prepared: PreparedVersion
    _engines: OnnxEngines

    @property
    def signature(self) -> Signature:
        """The model's signature for callers."""
        return self._prepared.session.signature

    @property
    def properties(self) -> Mapping[str, str]:
        """The metadata in the model's file."""
        return self._prepared.session.metadata.properties

    @property
    def published(self) -> Published:
        """The version's manifest, and who signed it."""
        return self._prepared.published

    def start(self, site: Site) -> BatchedSession:
        """See `OpenedVersion`."""
        return self._engines.start(self._prepared, site)

    def close(self) -> None:
        """See `OpenedVersion`."""
        self._prepared.close()
