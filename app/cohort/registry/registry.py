"""Loads and unloads versions as planned, and publishes the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

from cohort.batching import (
    Batcher,
    BatchEvent,
    BatchingDisabled,
    BatchObserver,
    InlineRun,
    LeftLoop,
)
from cohort.errors import LoadFailed, check_model_name
from cohort.inspection import Inspector
from cohort.profiling import MEASURING
from cohort.registry.actions import NO_VERSIONS, Load, PlannedModels, Unload
from cohort.registry.batched_session import BatchedSession
from cohort.registry.catalog import NOT_FAILED, UNLOADED, State, VersionEntry
from cohort.registry.engine import close_when_idle
from cohort.registry.events import (
    RegistryEvent,
    VersionDoubted,
    VersionFailed,
    VersionLeftLoop,
    VersionMeasured,
    VersionReady,
    VersionUnbatched,
    VersionUnloaded,
)
from cohort.registry.loading import LoadThreads
from cohort.registry.loads import Loads
from cohort.registry.measurer import Measurer
from cohort.registry.preparation import PreparedVersion, prepare_version
from cohort.registry.published import PublishedCatalog
from cohort.registry.rechecks import Rechecks
from cohort.registry.retrying import Retries, why_failed
from cohort.registry.succession import misfit_in_place
from cohort.repository import ModelConfig, Published, Snapshot, Trust
from cohort.session import ANY_MODEL, CancellationToken, ModelRules, Signature


class Registry(PublishedCatalog):
    """Holds the catalog, and loads and unloads versions as the repository and its config want.

    Everything happens on the event loop except the loading itself, which uses threads. After each
    call of `follow` and after each load, `plan` says what is to be done next; a version has one
    load at a time, and one that is not wanted any more is cancelled.

    catalog: Every model and version; replaced as a whole by each change.
    settled: Whether the loads of the first `follow` are over, each at the latest after its model's
        `load_timeout_s`.

    wake: Called with a batcher that has requests: `Scheduler.wake`.
    count: Makes the observer that counts a version's batches, from its model and version.
    observe: Called with each RegistryEvent.
    cache: The folder of kept profiles and optimized graphs; None: none are kept.
    rules: What is allowed of any model; default: any size, no custom operators.
    inspector: Inspects models before they are opened; default None: none are inspected.
    trust: The keys of which one must have signed a version; default None: anybody may publish.
    inline_run: Where runs on the event loop are written down for the watchdog; default: nowhere.
    started: Returns how many runs were started so far: `Scheduler.started`; default: none.
    """

    def __init__(
        self,
        *,
        wake: Callable[[Batcher], None],
        count: Callable[[str, str], BatchObserver],
        observe: Callable[[RegistryEvent], None],
        cache: Path | None,
        rules: ModelRules = ANY_MODEL,
        inspector: Inspector | None = None,
        trust: Trust | None = None,
        inline_run: InlineRun | None = None,
        started: Callable[[], int] = int,
    ) -> None:
        super().__init__()
        self._wanted: tuple[Snapshot, Mapping[str, AbstractSet[int]]] | None = None
        self._plans = PlannedModels()
        self._threads = LoadThreads()
        self._loads = Loads(self._load, self._on_load_over)
        self._retries = Retries(self._retry)
        self._first: set[str] | None = None  # models that the first pass still loads
        self._first_over = asyncio.Event()
        self._wake = wake
        self._count = count
        self._observe = observe
        self._inspector = inspector
        self._cache, self._rules, self._trust = cache, rules, trust
        self._inline_run = inline_run
        self._measurer = Measurer(wake=wake, started=started)
        self._rechecks = Rechecks(wake=wake, started=started)

    def follow(
        self, snapshot: Snapshot, pinned: Mapping[str, AbstractSet[int]] = NO_VERSIONS
    ) -> None:
        """Begin to load and unload until the catalog matches what is wanted.

        snapshot: What is on disk.
        pinned: Versions by model that are wanted besides those of the version policy, such as those
            of rollouts; default none.

        A failure is recorded in the catalog and reported to the observer; nothing is raised.
        """
        self._remember_signatures(snapshot)
        self._wanted = snapshot, pinned
        self._proceed(sorted(self.catalog.keys() | snapshot.models.keys()))
        if self._first is None:
            self._first = self._loads.models
        self._settle()

    @property
    def loading(self) -> list[str]:
        """The loads that go on, each with what it is at, in words."""
        return self._loads.stages

    async def loaded(self, model: str | None = None) -> None:
        """Wait until no load of `model` goes on; default None: of any model."""
        await self._loads.wait(model)

    async def first_loaded(self) -> None:
        """Wait until `settled`."""
        await self._first_over.wait()

    def unload_model(self, model: str, *, unknown: bool = False) -> None:
        """Unload every version of a model, and load none until `reload_model`.

        Requests in flight finish. The model does not count as `unavailable`. Raises as `model`,
        unless it may be `unknown` so far.
        """
        self._put_aside(model if unknown else self.model(model).name, UNLOADED)

    def _put_aside(self, model: str, reason: str) -> None:
        self._unloaded[model] = reason
        self._once_ready -= {model}
        for number, version in self._versions_of(model):
            if version.state is State.READY:
                self._unload(Unload(model, number))
            else:
                self._loads.cancel(model, number)
                self._retries.forget(model, number)
                self._mark_unloaded(Load(model, number, version.source))

    def reload_model(self, model: str) -> None:
        """Undo `unload_model`, and let the next `follow` retry versions that failed.

        Raises ModelNotFound for what cannot be a name.
        """
        check_model_name(model)
        self._unloaded.pop(model, None)
        if model in self.catalog:
            for version in self.catalog[model].versions.values():
                if version.reason:
                    self._retries.forget(model, version.number)
                    self._put(model, version.to_reload())

    def follow_trust(self) -> None:
        """Serve by the keys that are trusted now: end what none of them signed, try others again.

        A version whose key was taken away does not serve on, as one does whose files were changed.
        """
        for name, model in list(self.catalog.items()):
            for number, entry in model.versions.items():
                engine = entry.engine if entry.state is State.READY else None
                if engine is not None and not self._trusts(engine.describe().published):
                    self._put(name, entry.distrusted())
                    close_when_idle(engine)
                elif entry.reason not in NOT_FAILED:
                    self._retries.forget(name, number)
                    self._put(name, entry.to_reload())
        self._proceed(sorted(self.catalog))

    def _trusts(self, published: Published) -> bool:
        return self._trust is None or self._trust.trusts(published.signer)

    def close(self) -> None:
        """Unload every version of every model. Engines with requests close after the last one.

        Loads that go on are cancelled; nobody waits for them.
        """
        self._wanted = None
        self._measurer.close()
        self._rechecks.close()
        self._loads.cancel_all()
        for model in list(self.catalog.values()):
            for number in model.versions:
                self._unload(Unload(model.name, number))

    # -- loading

    def _proceed(self, models: Iterable[str]) -> None:
        """Do what is to be done for `models`, as far as no load of theirs goes on."""
        for model in models:
            while actions := self._due(model):
                for action in actions:
                    if isinstance(action, Unload):
                        self._unload(action)
                    elif model in self._unloaded:
                        self._mark_unloaded(action)
                    else:
                        self._begin(action)

    def _due(self, model: str) -> list[Load | Unload]:
        """What is to be done for a model now. Loads of what has changed meanwhile are cancelled."""
        if self._wanted is None:
            return []
        snapshot, pinned = self._wanted
        due: list[Load | Unload] = []
        for action in self._plans.due(model, snapshot, self.catalog, self._unloaded.keys(), pinned):
            source = self._loads.source(model, action.number)
            if source is None or isinstance(action, Unload):
                due.append(action)
            elif source != action.source:
                self._loads.cancel(model, action.number)  # once that is over, this is due
        return due

    def _begin(self, load: Load) -> None:
        model, number, source = load
        before = self._entry(model, number)
        if before is None or before.engine is None:
            self._put(model, VersionEntry(number, State.LOADING, source))
        self._loads.begin(load)

    async def _load(self, load: Load, token: CancellationToken) -> None:
        model, number, source = load
        prepare = partial(
            prepare_version,
            source,
            self._cache,
            rules=self._rules,
            inspector=self._inspector,
            trust=self._trust,
            token=token,
        )
        seconds = (source.config or ModelConfig()).load_timeout_s
        try:
            prepared, took = await self._threads.run(
                (model, number), prepare, token, seconds=seconds
            )
        except Exception as error:  # noqa: BLE001 - other versions must still load
            self._record_failure(load, error)
        else:
            self._publish(load, prepared, took)

    def _on_load_over(self, load: Load, cancelled: bool) -> None:
        entry = self._entry(load.model, load.number)
        if cancelled and entry is not None and entry.state is State.LOADING:
            self._remove(load.model, load.number)
        self._proceed([load.model])
        self._settle()
        if not self._loads.models and self._inspector is not None and self._inspector.busy:
            asyncio.get_running_loop().run_in_executor(None, self._inspector.rest)

    def _settle(self) -> None:
        """See whether the first loads are over."""
        if self._first is not None and not self.settled:
            self._first &= self._loads.models
            if not self._first:
                self.settled = True
                self._first_over.set()

    def _publish(self, load: Load, prepared: PreparedVersion, seconds: float) -> None:
        """Let a version that is loaded answer requests, in place of what had its number."""
        model, number, source = load
        before = self._entry(model, number)
        former = before.signature if before is not None else None
        session = prepared.session
        signature = Signature(session.inputs, session.outputs, session.optional_inputs)
        allowed = (source.config or ModelConfig()).allow_signature_change
        misfit = "" if allowed else misfit_in_place(former, signature)
        if not self._trusts(prepared.published):
            misfit = "the key that signed it was taken out of COHORT_TRUSTED_KEYS meanwhile"
        if misfit:
            prepared.close()
            self._record_failure(load, LoadFailed(misfit))
            return
        engine = self._make_engine(model, number, prepared)
        entry = VersionEntry(number, State.READY, source, engine=engine)
        entry = entry.profiled(prepared.profile_result)
        self._put(model, entry)
        self._retries.forget(model, number)
        self._once_ready |= {model}
        if before is not None and before.engine is not None and before.state is State.READY:
            close_when_idle(before.engine)
        self._observe(VersionReady(model, entry, seconds))
        if not engine.profile.complete:
            self._measure(model, number, engine)

    def _record_failure(self, load: Load, error: Exception) -> None:
        model, number, source = load
        reason = why_failed(error)
        retry_at = self._retries.plan(model, number, source, error)
        before = self._entry(model, number)
        serving = before is not None and before.state is State.READY
        if before is not None and serving:
            entry = replace(before, source=source, reason=reason, retry_at=retry_at)
        else:
            entry = VersionEntry(number, State.UNAVAILABLE, source, reason, retry_at=retry_at)
        self._put(model, entry)
        retry_in = None if retry_at is None else retry_at - monotonic()
        self._observe(VersionFailed(model, number, reason, serving, retry_in))

    def _retry(self, model: str, number: int) -> None:
        """Load a version again whose failure may have passed."""
        entry = self._entry(model, number)
        if entry is not None and entry.retry_at is not None:
            self._put(model, entry.to_reload())
            self._proceed([model])

    def _make_engine(self, model: str, number: int, prepared: PreparedVersion) -> BatchedSession:
        count = self._count(model, str(number))

        def observe(event: BatchEvent) -> None:
            count(event)
            if event.__class__ is BatchingDisabled:
                prepared.keep_unbatched(event.reason)
                self._record_unbatched(model, number, event.reason)
            elif event.__class__ is LeftLoop:
                self._observe(VersionLeftLoop(model, number, event.reason))

        return BatchedSession(
            prepared,
            wake=self._wake,
            observe=observe,
            inline_run=self._inline_run,
            rechecks=self._rechecks,
            name=f"model {model}, version {number}",
        )

    def _unload(self, unload: Unload) -> None:
        model, number = unload
        self._loads.cancel(model, number)
        self._retries.forget(model, number)
        entry = self._entry(model, number)
        if entry is None or entry.engine is None:
            if entry is not None:
                self._remove(model, number)
            return
        self._put(model, replace(entry, state=State.UNLOADING))
        engine = entry.engine

        def on_closed() -> None:
            if (now := self._entry(model, number)) is not None and now.engine is engine:
                self._remove(model, number)
                if model in self._unloaded:
                    self._mark_unloaded(Load(model, number, now.source))
            self._observe(VersionUnloaded(model, number))

        close_when_idle(engine, on_closed)

    async def look_at_profiles(self) -> None:
        """Have versions measured again whose runs show that their profiles are wrong."""
        now = monotonic()
        for model in self.catalog.values():
            for number, entry in model.versions.items():
                engine = entry.engine
                if isinstance(engine, BatchedSession) and (doubt := engine.look_at_pace(now)):
                    self._observe(VersionDoubted(model.name, number, doubt))
                    self._measure(model.name, number, engine, fresh=True)

    def _measure(
        self, model: str, number: int, engine: BatchedSession, *, fresh: bool = False
    ) -> None:
        """Measure a version in idle moments, and record what follows."""

        def adopted() -> None:
            entry = self._entry(model, number)
            if entry is not None and entry.engine is engine:
                off, mixed = entry.batching_off, entry.mixed
                entry = entry.profiled(engine.profile)
                if engine.unbatched:
                    entry = replace(entry, batching_off=off, mixed=mixed)
                self._put(model, entry)
                self._observe(VersionMeasured(model, entry))

        def failed(reason: str) -> None:
            entry = self._entry(model, number)
            if entry is not None and entry.engine is engine and entry.batching_off == MEASURING:
                off = f"it could not be measured: {reason}"
                self._put(model, replace(entry, batching_off=off))

        self._measurer.measure(model, number, engine, adopted, failed, fresh=fresh)

    def _record_unbatched(self, model: str, number: int, reason: str) -> None:
        if (entry := self._entry(model, number)) is not None:
            self._put(model, replace(entry, batching_off=reason, mixed=reason))
        self._observe(VersionUnbatched(model, number, reason))
