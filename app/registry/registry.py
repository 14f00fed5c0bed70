"""Loads and unloads versions as planned, and publishes the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from time import monotonic

from app.batching import (
    Batcher,
    BatchEvent,
    BatchingDisabled,
    BatchObserver,
    InlineRun,
    LeftLoop,
)
from app.errors import (
    LoadFailed,
    NotReady,
    VersionNotFound,
    check_model_name,
    quoted,
)
from app.inspection import Inspector
from app.registry.actions import NO_VERSIONS, Load, Unload, plan, select_versions
from app.registry.batched_session import BatchedSession
from app.registry.catalog import (
    UNLOADED,
    Catalog,
    ModelEntry,
    State,
    VersionEntry,
    find_model,
)
from app.registry.engine import Engine
from app.registry.events import (
    RegistryEvent,
    VersionFailed,
    VersionLeftLoop,
    VersionMeasured,
    VersionReady,
    VersionUnbatched,
    VersionUnloaded,
)
from app.registry.measurer import Measurer
from app.registry.preparation import PreparedVersion, prepare_version
from app.registry.succession import misfit_in_place
from app.repository import Signatures, Snapshot
from app.session import ANY_MODEL, ModelRules, Signature


class Registry:
    """Holds the catalog, and loads and unloads versions as the repository and its config want.

    Everything happens on the event loop except the loading itself, which uses a thread.

    catalog: Every model and version; replaced as a whole by each change.
    settled: Whether the first `reconcile` is over.

    wake: Called with a batcher that has requests: `Scheduler.wake`.
    count: Makes the observer that counts a version's batches, from its model and version.
    observe: Called with each RegistryEvent.
    cache: The folder of kept profiles and optimized graphs; None: none are kept.
    rules: What is allowed of any model; default: any size, no custom operators.
    inspector: Inspects models before they are opened; default None: none are inspected.
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
        inline_run: InlineRun | None = None,
        started: Callable[[], int] = int,
    ) -> None:
        self.catalog: Catalog = {}
        self.settled = False
        self._once_ready: set[str] = set()  # models that have had a READY version
        self._unloaded: set[str] = set()  # models that an operator unloaded
        self._signatures: dict[str, Signatures] = {}  # on disk, by model
        self._wake = wake
        self._count = count
        self._observe = observe
        self._inspector = inspector
        self._cache, self._rules = cache, rules
        self._inline_run = inline_run
        self._measurer = Measurer(wake=wake, started=started)

    # -- reading

    def find(self, model: str, version: str | None = None) -> VersionEntry:
        """The entry of `version`, or of the highest READY version where it is None.

        Raises ModelNotFound, VersionNotFound or NotReady.
        """
        entry = self.model(model)
        chosen = entry.default if version is None else self.version(model, version)
        if chosen is None:
            reason = (
                "was unloaded"
                if model in self._unloaded
                else f"has no ready version; GET /models/{model} says why"
            )
            raise NotReady(f"model {quoted(model)} {reason}")
        if chosen.state is not State.READY:
            raise NotReady(f"version {chosen.number} of model {quoted(model)} is {chosen.state}")
        return chosen

    def version(self, model: str, version: str) -> VersionEntry:
        """The entry of one version. Raises ModelNotFound or VersionNotFound."""
        entry = self.model(model)
        number = int(version) if version.isdecimal() and len(version) < 20 else -1
        if number not in entry.versions or str(number) != version:
            raise VersionNotFound(model, version, entry.versions)
        return entry.versions[number]

    def model(self, name: str) -> ModelEntry:
        """The entry of one model. Raises ModelNotFound, or NotReady while `settled` is False."""
        return find_model(name, self.catalog, settled=self.settled)

    @property
    def unavailable(self) -> list[str]:
        """Models that had a READY version and have none now, except those an operator unloaded."""
        return sorted(
            name
            for name in self._once_ready
            if name in self.catalog and self.catalog[name].default is None
        )

    # -- changing

    async def reconcile(
        self, snapshot: Snapshot, pinned: Mapping[str, AbstractSet[int]] = NO_VERSIONS
    ) -> None:
        """Load and unload until the catalog matches what is wanted.

        snapshot: What is on disk.
        pinned: Versions by model that are wanted besides those of the version policy, such as those
            of rollouts; default none.

        A failure is recorded in the catalog and reported to the observer; nothing is raised.
        """
        self._remember_signatures(snapshot)
        while actions := plan(
            select_versions(snapshot, self.catalog, self._unloaded, pinned),
            self.catalog,
            self._unloaded,
        ):
            for action in actions:
                if isinstance(action, Load) and self._entry(action.model, action.number) is None:
                    entry = VersionEntry(action.number, State.LOADING, action.source)
                    self._put(action.model, entry)
            for action in actions:
                if isinstance(action, Load):
                    await self._load(action)
                else:
                    self._unload(action)
        if self._inspector is not None and self._inspector.busy:
            await asyncio.to_thread(self._inspector.rest)
        self.settled = True

    def unload_model(self, model: str) -> None:
        """Unload every version of a model, and load none until `reload_model`.

        Requests in flight finish. The model does not count as `unavailable`. Raises as `model`.
        """
        entry = self.model(model)
        self._unloaded.add(model)
        self._once_ready.discard(model)
        for number, version in entry.versions.items():
            if version.state is State.READY:
                self._unload(Unload(model, number))
            elif version.state is State.UNAVAILABLE:
                self._mark_unloaded(Load(model, number, version.source))

    def reload_model(self, model: str) -> None:
        """Undo `unload_model`, and let the next `reconcile` retry versions that failed.

        Raises ModelNotFound for what cannot be a name.
        """
        check_model_name(model)
        self._unloaded.discard(model)
        if model in self.catalog:
            for version in self.catalog[model].versions.values():
                if version.reason:
                    outdated = replace(version.source, stamp="")  # differs from what is on disk
                    self._put(model, replace(version, source=outdated))

    def close(self) -> None:
        """Unload every version of every model. Engines with requests close after the last one."""
        self._measurer.close()
        for model in list(self.catalog.values()):
            for number in model.versions:
                self._unload(Unload(model.name, number))

    async def _load(self, load: Load) -> None:
        model, number, source = load
        if model in self._unloaded:
            self._mark_unloaded(load)
            return
        before = self._entry(model, number)
        if before is not None and before.engine is None:
            self._put(model, VersionEntry(number, State.LOADING, source))
        started = monotonic()
        try:
            prepared = await asyncio.to_thread(
                prepare_version, source, self._cache, rules=self._rules, inspector=self._inspector
            )
        except LoadFailed as error:
            self._record_failure(load, str(error))
            return
        except Exception as error:  # noqa: BLE001 - other versions must still load
            self._record_failure(load, f"{type(error).__name__}: {error}")
            return
        if model in self._unloaded:  # meanwhile
            prepared.close()
            self._mark_unloaded(load)
            return
        before = self._entry(model, number)
        former = before.signature if before is not None else None
        signature = Signature(prepared.session.inputs, prepared.session.outputs)
        allowed = source.config is not None and source.config.allow_signature_change
        if misfit := "" if allowed else misfit_in_place(former, signature):
            prepared.close()
            self._record_failure(load, misfit)
            return
        engine = self._make_engine(model, number, prepared)
        entry = VersionEntry(
            number,
            State.READY,
            source,
            engine=engine,
            batching_off=prepared.profile_result.profile.reason,
            padding_off=prepared.profile_result.padding.reason,
        )
        self._put(model, entry)
        self._once_ready.add(model)
        if before is not None and before.engine is not None and before.state is State.READY:
            self._close_when_idle(before.engine)
        self._observe(VersionReady(model, entry, monotonic() - started))
        if not engine.profile.complete:
            self._measure(model, number, engine)

    def _record_failure(self, load: Load, reason: str) -> None:
        model, number, source = load
        before = self._entry(model, number)
        serving = before is not None and before.state is State.READY
        if model in self._unloaded:
            self._mark_unloaded(load)
        elif before is not None and serving:
            self._put(model, replace(before, source=source, reason=reason))
        else:
            self._put(model, VersionEntry(number, State.UNAVAILABLE, source, reason))
        self._observe(VersionFailed(model, number, reason, serving))

    def _make_engine(self, model: str, number: int, prepared: PreparedVersion) -> BatchedSession:
        count = self._count(model, str(number))

        def observe(event: BatchEvent) -> None:
            count(event)
            if event.__class__ is BatchingDisabled:
                self._record_unbatched(model, number, event.reason)
            elif event.__class__ is LeftLoop:
                self._observe(VersionLeftLoop(model, number, event.reason))

        return BatchedSession(
            prepared,
            wake=self._wake,
            observe=observe,
            inline_run=self._inline_run,
            name=f"model {model}, version {number}",
        )

    def _mark_unloaded(self, load: Load) -> None:
        """Record a version that is not loaded because an operator unloaded its model."""
        model, number, source = load
        entry = self._entry(model, number)
        if entry is not None and entry.state is State.UNLOADING:
            self._put(model, replace(entry, source=source))
        else:
            self._put(model, VersionEntry(number, State.UNAVAILABLE, source, UNLOADED))

    def _unload(self, unload: Unload) -> None:
        model, number = unload
        entry = self._entry(model, number)
        if entry is None:
            return
        if entry.engine is None:
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

        self._close_when_idle(engine, on_closed)

    @staticmethod
    def _close_when_idle(engine: Engine, on_closed: Callable[[], None] | None = None) -> None:
        def close() -> None:
            engine.close()
            if on_closed is not None:
                on_closed()

        engine.leases.when_idle(close)

    def _measure(self, model: str, number: int, engine: BatchedSession) -> None:
        """Measure a version in idle moments, and record what follows."""

        def adopted() -> None:
            entry = self._entry(model, number)
            if entry is not None and entry.engine is engine:
                found = engine.profile
                reason = entry.batching_off if engine.unbatched else found.profile.reason
                entry = replace(entry, batching_off=reason, padding_off=found.padding.reason)
                self._put(model, entry)
                self._observe(VersionMeasured(model, entry))

        self._measurer.measure(model, number, engine, adopted)

    def _record_unbatched(self, model: str, number: int, reason: str) -> None:
        if (entry := self._entry(model, number)) is not None:
            self._put(model, replace(entry, batching_off=reason))
        self._observe(VersionUnbatched(model, number, reason))

    # -- the catalog: each change makes a new one

    def _remember_signatures(self, snapshot: Snapshot) -> None:
        before = self._signatures
        self._signatures = {name: one.signatures for name, one in snapshot.models.items()}
        for name, model in list(self.catalog.items()):
            if before.get(name) != self._signatures.get(name):
                self._swap(name, model.versions)

    def _entry(self, model: str, number: int) -> VersionEntry | None:
        return self.catalog[model].versions.get(number) if model in self.catalog else None

    def _put(self, model: str, entry: VersionEntry) -> None:
        versions = dict(self.catalog[model].versions) if model in self.catalog else {}
        versions[entry.number] = entry
        self._swap(model, versions)

    def _remove(self, model: str, number: int) -> None:
        versions = dict(self.catalog[model].versions)
        del versions[number]
        self._swap(model, versions)

    def _swap(self, model: str, versions: Mapping[int, VersionEntry]) -> None:
        catalog = dict(self.catalog)
        if versions:
            signatures = self._signatures.get(model, {})
            catalog[model] = ModelEntry(model, dict(sorted(versions.items())), signatures)
        else:
            catalog.pop(model, None)
        in_order = model in self.catalog or not versions
        self.catalog = catalog if in_order else dict(sorted(catalog.items()))
