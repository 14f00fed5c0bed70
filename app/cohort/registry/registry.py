"""The registry: loads and unloads versions as planned, and publishes the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic

from cohort.batching import BatchingDisabled, LeftLoop
from cohort.errors import LoadFailed, MembersUnfit, NotReady, check_model_name
from cohort.profiling import MEASURING
from cohort.registry.actions import NO_VERSIONS, Load, PlannedModels, Unload
from cohort.registry.catalog import NOT_FAILED, RESTING, UNLOADED, State, VersionEntry
from cohort.registry.engine import (
    Engine,
    EngineEvent,
    EngineFactory,
    Measured,
    OpenedVersion,
    ProfileStale,
    Site,
    Unmeasured,
    close_when_idle,
)
from cohort.registry.events import (
    RegistryEvent,
    VersionFailed,
    VersionLeftLoop,
    VersionMeasured,
    VersionProfileStale,
    VersionReady,
    VersionUnbatched,
    VersionUnloaded,
)
from cohort.registry.loading import LoadThreads
from cohort.registry.loads import Loads
from cohort.registry.members import MemberNeeds, serving_engines, why_member_lacks
from cohort.registry.published import PublishedCatalog
from cohort.registry.retrying import Retries, why_failed
from cohort.registry.source import Source
from cohort.registry.succession import misfit_in_place
from cohort.repository import MODEL_FILE, ModelConfig, Published, Snapshot, Trust, is_model_file
from cohort.session import CancellationToken

CHECK_SECONDS = 5.0
"""Interval of the checks whether engines run as expected."""

UNMEASURED = "it could not be measured"

REPORTED = frozenset({BatchingDisabled, LeftLoop, Measured, Unmeasured, ProfileStale})
"""The events of engines that change the recorded state of a version."""


class Registry(PublishedCatalog):
    """Holds the catalog, and loads and unloads versions to match the repository and its config.

    Everything happens on the event loop except the loading itself, which uses threads. After each
    call of `follow` and after each load, `plan` returns the next actions. A version has one load at
    a time, and an unwanted load is cancelled.

    catalog: Every model and version; replaced as a whole by each change.
    settled: True once the loads of the first `follow` have ended. Each ends at the latest after its
        model's `load_timeout_s`.

    engines: The factories of all kinds of folders; the first that fits is used.
    observe: Called with each RegistryEvent.
    trust: A trusted key must have signed a version; default None: signatures are not required.
    """

    def __init__(
        self,
        engines: Sequence[EngineFactory],
        *,
        observe: Callable[[RegistryEvent], None],
        trust: Trust | None = None,
    ) -> None:
        super().__init__()
        self._wanted: tuple[Snapshot, Mapping[str, AbstractSet[int]]] | None = None
        self._plans = PlannedModels()
        self._threads = LoadThreads()
        self._loads = Loads(self._load, self._on_load_over)
        self._retries = Retries(self._retry)
        self._first: set[str] | None = None  # models that the first pass still loads
        self._first_over = asyncio.Event()
        self._engines = {factory.file: factory for factory in engines}
        self._observe = observe
        self._trust = trust
        self._members = MemberNeeds()
        self._due_models: set[str] = set()  # models with changed members

    @property
    def kinds(self) -> Sequence[str]:
        """The file names that identify a model in a version's folder, in order of precedence."""
        return list(self._engines)

    def follow(
        self, snapshot: Snapshot, pinned: Mapping[str, AbstractSet[int]] = NO_VERSIONS
    ) -> None:
        """Begin to load and unload until the catalog matches the wanted versions.

        snapshot: The models on disk.
        pinned: Versions by model that are wanted in addition to those of the version policy, such
            as those of rollouts; default: empty.

        A failure is recorded in the catalog and reported to the observer; nothing is raised.
        """
        self._remember_signatures(snapshot)
        self._wanted = snapshot, pinned
        self._proceed(sorted(self.catalog.keys() | snapshot.models.keys()))
        if self._first is None:
            self._first = self._loads.models
        self._update_settled()

    @property
    def loading(self) -> list[str]:
        """The loads in progress, each with its current stage, in words."""
        return self._loads.stages

    async def loaded(self, model: str | None = None) -> None:
        """Wait until `model` and the pipelines that need it have no loads; default: all models."""
        await self._loads.wait(model)
        for name in [] if model is None else self._members.models_needing(model):
            await self._loads.wait(name)

    async def first_loaded(self) -> None:
        """Wait until `settled`."""
        await self._first_over.wait()

    def unload_model(self, model: str, *, unknown: bool = False) -> None:
        """Unload every version of a model, and load none until `reload_model`.

        Requests in flight finish. The model does not count as `unavailable`. Raises as `model`,
        unless `unknown` allows a model that is not known.
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

        Raises ModelNotFound for a string that cannot be a name.
        """
        check_model_name(model)
        self._unloaded.pop(model, None)
        if model in self.catalog:
            for version in self.catalog[model].versions.values():
                if version.reason:
                    self._retries.forget(model, version.number)
                    self._put(model, version.to_reload())

    def follow_trust(self) -> None:
        """Apply the current trusted keys: end versions that they did not sign, retry failed ones.

        A version whose key was removed stops serving at once. A version with changed files does
        not.
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

        Loads in progress are cancelled, without waiting for them.
        """
        self._wanted = None
        self._unloaded.clear()  # a closed registry names nothing, not even what was unloaded
        for factory in self._engines.values():
            factory.close()
        self._loads.cancel_all()
        for model in list(self.catalog.values()):
            for number in model.versions:
                self._unload(Unload(model.name, number))

    # -- loading

    def _proceed(self, models: Iterable[str]) -> None:
        """Perform the due actions for `models`, except during loads of the same version."""
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
        """Return the due actions for a model. Loads of changed files are cancelled."""
        if self._wanted is None:
            return []
        snapshot, pinned = self._wanted
        pinned = self._members.pinned(pinned)
        due: list[Load | Unload] = []
        for action in self._plans.due(model, snapshot, self.catalog, self._unloaded.keys(), pinned):
            source = self._loads.source(model, action.number)
            if source is None or isinstance(action, Unload):
                due.append(action)
            elif source != action.source:
                self._loads.cancel(model, action.number)  # the action is due after that
        return due

    def _begin(self, load: Load) -> None:
        model, number, source = load
        before = self._entry(model, number)
        if before is None or before.engine is None:
            self._put(model, VersionEntry(number, State.LOADING, source))
        self._loads.begin(load)

    async def _load(self, load: Load, token: CancellationToken) -> None:
        model, number, source = load
        seconds = (source.config or ModelConfig()).load_timeout_s
        try:
            open_version = partial(self._factory_of(source).open, source, token)
            while True:
                self._members.stale.discard((model, number))
                try:
                    opened, took = await self._threads.run(
                        (model, number), open_version, token, seconds=seconds
                    )
                    break
                except MembersUnfit as error:
                    self._members.set((model, number), error.needs)
                    if not await self._members_over(error.missing):
                        raise
        except Exception as error:  # noqa: BLE001 - other versions must still load
            self._record_failure(load, error)
        else:
            self._publish(load, opened, took)

    async def _members_over(self, missing: Iterable[str]) -> bool:
        """Wait for the loads of missing members; return True if there were any."""
        waited = False
        for model in missing:
            with suppress(NotReady):
                self.demand(model)
            self._proceed([model])  # loads a version that only the pipeline wants
            if self._loads.goes_on(model):
                waited = True
                await self._loads.wait_for_one(model)
        return waited

    def _factory_of(self, source: Source) -> EngineFactory:
        """Return the factory that opens a version. Raises LoadFailed if there is none."""
        name = source.path.name
        factory = self._engines.get(MODEL_FILE if is_model_file(name) else name)
        if factory is None:
            raise LoadFailed(source.problem or f"this server cannot load {source.path.name}")
        return factory

    def _on_load_over(self, load: Load, cancelled: bool) -> None:
        entry = self._entry(load.model, load.number)
        if cancelled and entry is not None and entry.state is State.LOADING:
            self._remove(load.model, load.number)
        if (load.model, load.number) in self._members.stale:
            self._load_again(load.model, load.number)
        self._proceed([load.model])
        self._proceed_due()
        self._update_settled()
        if not self._loads.models:
            for factory in self._engines.values():
                factory.rest()

    def _update_settled(self) -> None:
        """Set `settled` once the first loads have ended."""
        if self._first is not None and not self.settled:
            self._first &= self._loads.models
            if not self._first:
                self.settled = True
                self._first_over.set()

    def _publish(self, load: Load, opened: OpenedVersion, seconds: float) -> None:
        """Make a loaded version answer requests, instead of the one with the same number."""
        model, number, source = load
        before = self._entry(model, number)
        former = before.signature if before is not None else None
        allowed = (source.config or ModelConfig()).allow_signature_change
        misfit = "" if allowed else misfit_in_place(former, opened.signature)
        if not self._trusts(opened.published):
            misfit = "the key that signed it was removed from COHORT_TRUSTED_KEYS"
        if misfit:
            opened.close()
            self._record_failure(load, LoadFailed(misfit))
            return
        engine = opened.start(self._site(model, number))
        description = engine.describe()
        batching, pipeline = description.batching, description.pipeline
        self._members.set((model, number), frozenset() if pipeline is None else pipeline.needs)
        entry = VersionEntry(number, State.READY, source, engine=engine)
        entry = entry.profiled(None if batching is None else batching.profile)
        self._put(model, entry)
        self._retries.forget(model, number)
        self._once_ready |= {model}
        if before is not None and before.engine is not None and before.state is State.READY:
            close_when_idle(before.engine)
        self._observe(VersionReady(model, entry, seconds))

    def _record_failure(self, load: Load, error: Exception) -> None:
        model, number, source = load
        reason = why_failed(error)
        retry_at = self._retries.plan(model, number, source, error)
        before = self._entry(model, number)
        serving = before is not None and before.state is State.READY
        if before is not None and isinstance(error, MembersUnfit) and not before.source.stamp:
            serving = False  # the same files no longer fit their members
            self._once_ready -= {model}
            if before.engine is not None:
                close_when_idle(before.engine)
        if before is not None and serving:
            entry = replace(before, source=source, reason=reason, retry_at=retry_at)
        else:
            entry = VersionEntry(number, State.UNAVAILABLE, source, reason, retry_at=retry_at)
        self._put(model, entry)
        retry_in = None if retry_at is None else retry_at - monotonic()
        self._observe(VersionFailed(model, number, reason, serving, retry_in))

    # -- members of pipelines

    def with_members(
        self, pinned: Mapping[str, AbstractSet[int]]
    ) -> Mapping[str, AbstractSet[int]]:
        """Return the pinned versions by model, with those that pipelines name."""
        return self._members.pinned(pinned)

    def _swap(self, model: str, versions: Mapping[int, VersionEntry]) -> None:
        """Replace a model's versions, and reload the pipelines that need it."""
        before = self.catalog.get(model) if self._members else None
        super()._swap(model, versions)
        if self._members and self._unloaded.get(model) != RESTING:
            serves = serving_engines(self.catalog.get(model))
            if serving_engines(before) != serves:
                for one in self._members.dependents(model):
                    self._follow_member(*one)

    def _remove(self, model: str, number: int) -> None:
        """Remove a version as `PublishedCatalog` does, and forget its needs."""
        super()._remove(model, number)
        self._members.set((model, number), frozenset())

    def _follow_member(self, model: str, number: int) -> None:
        """End a version whose member is gone; reload it if the member was replaced."""
        entry = self._entry(model, number)
        if entry is None or entry.state is State.UNLOADING:
            return
        engine = entry.engine
        pipeline = None if engine is None else engine.describe().pipeline
        if engine is not None and pipeline is not None:
            lacks = why_member_lacks(pipeline, self.find)
            if lacks:
                self._once_ready -= {model}  # only the member may count as unavailable
                failed = VersionEntry(number, State.UNAVAILABLE, entry.source, lacks)
                self._put(model, failed)
                close_when_idle(engine)
                self._observe(VersionFailed(model, number, lacks, serving=False, retry_in=None))
                return
        if self._loads.source(model, number) is not None:
            self._members.stale.add((model, number))
        else:
            self._load_again(model, number)

    def _load_again(self, model: str, number: int) -> None:
        self._members.stale.discard((model, number))
        entry = self._entry(model, number)
        if entry is not None and self._wanted is not None:
            self._put(model, entry.to_reload())
            self._due_models.add(model)
            asyncio.get_running_loop().call_soon(self._proceed_due)

    def _proceed_due(self) -> None:
        """Reload the pipelines whose members have changed."""
        due, self._due_models = self._due_models, set()
        self._proceed(sorted(due))
        if self._first is not None and not self.settled:
            self._first |= {model for model in due if self._loads.goes_on(model)}

    def _retry(self, model: str, number: int) -> None:
        """Reload a version whose failure may have passed."""
        entry = self._entry(model, number)
        if entry is not None and entry.retry_at is not None:
            self._put(model, entry.to_reload())
            self._proceed([model])

    def _site(self, model: str, number: int) -> Site:
        """Return the site of a version's engine, which records its events."""

        def observe(event: EngineEvent) -> None:
            if event.__class__ in REPORTED:
                self._record(model, number, event)

        return Site(model, number, observe, self)

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

    async def check_engines(self) -> None:
        """Check all engines: versions whose runs differ from their profiles are measured again."""
        for factory in self._engines.values():
            factory.check_engines()

    def _record(self, model: str, number: int, event: EngineEvent) -> None:
        """Record an event of a version's engine."""
        match event:
            case BatchingDisabled(reason):
                if (entry := self._entry(model, number)) is not None:
                    self._put(model, replace(entry, batching_off=reason, mixed=reason))
                self._observe(VersionUnbatched(model, number, reason))
            case LeftLoop(reason):
                self._observe(VersionLeftLoop(model, number, reason))
            case ProfileStale(reason):
                self._observe(VersionProfileStale(model, number, reason))
            case Measured(engine, found, unbatched):
                if (entry := self._serving_by(engine, model, number)) is not None:
                    off, mixed = entry.batching_off, entry.mixed
                    entry = entry.profiled(found)
                    if unbatched:
                        entry = replace(entry, batching_off=off, mixed=mixed)
                    self._put(model, entry)
                    self._observe(VersionMeasured(model, entry))
            case Unmeasured(engine, reason, again_in):
                entry = self._serving_by(engine, model, number)
                if entry is not None and entry.batching_off.startswith((MEASURING, UNMEASURED)):
                    off = f"{UNMEASURED}: {reason}{_next_try(again_in)}"
                    self._put(model, replace(entry, batching_off=off))

    def _serving_by(self, engine: Engine, model: str, number: int) -> VersionEntry | None:
        """Return the entry of a version, if this engine serves it."""
        entry = self._entry(model, number)
        return entry if entry is not None and entry.engine is engine else None


def _next_try(seconds: float | None) -> str:
    """Return the time of the next attempt, for the end of a sentence."""
    if seconds is None:
        return ""
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return f"; the next try begins at {at:%H:%M:%S} UTC"
