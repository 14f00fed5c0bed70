"""The doer beside the plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from app.batching import Batcher, BatchingOff, BatchObserver, Left, Ran
from app.errors import LoadFailed, ModelNotFound, NotReady, VersionNotFound
from app.registry.actions import NONE, Load, Unload, plan, wanted
from app.registry.batched_session import BatchedSession
from app.registry.catalog import UNLOADED, Catalog, ModelEntry, State, VersionEntry
from app.registry.engine import Engine
from app.registry.preparation import PreparedVersion, prepare_version
from app.repository import Snapshot


class Opened(NamedTuple):
    """A version takes traffic now; it took `seconds` to get there."""

    model: str
    version: VersionEntry
    seconds: float


class Failed(NamedTuple):
    """A version could not be loaded; `serving` says whether its older self serves on."""

    model: str
    number: int
    reason: str
    serving: bool


class Unloaded(NamedTuple):
    """A version is gone and its memory free."""

    model: str
    number: int


class TurnedOff(NamedTuple):
    """Batching was turned off for a version that had been batched."""

    model: str
    number: int
    reason: str


RegistryEvent = Opened | Failed | Unloaded | TurnedOff


class Registry:
    """Holds the catalog and makes it what the repository and its configuration want.

    wake: The scheduler's, called with a batcher that has requests.
    count: Gives the observer that counts a version's batches, by model and version.
    observe: Called with each event of a version: opened, failed, unloaded, batching turned off.
    cache: The folder of kept profiles and optimized graphs; None keeps none.
    """

    def __init__(
        self,
        *,
        wake: Callable[[Batcher], None],
        count: Callable[[str, str], BatchObserver],
        observe: Callable[[RegistryEvent], None],
        cache: Path | None,
    ) -> None:
        self.catalog: Catalog = {}
        self.settled = False  # whether the first pass over the repository is done
        self._was_ready: set[str] = set()
        self._out: set[str] = set()  # models that an operator took out
        self._wake = wake
        self._count = count
        self._observe = observe
        self._cache = cache

    # -- reading

    def find(self, model: str, version: str | None = None) -> VersionEntry:
        """The version that answers: the one asked for, or the highest that is READY.

        Raises ModelNotFound, VersionNotFound or NotReady.
        """
        entry = self.model(model)
        chosen = entry.default if version is None else self.version(model, version)
        if chosen is None:
            known = "was unloaded" if model in self._out else "has no version that is ready"
            raise NotReady(f"model {model!r} {known}")
        if chosen.state is not State.READY:
            raise NotReady(f"version {chosen.number} of model {model!r} is {chosen.state}")
        return chosen

    def version(self, model: str, version: str) -> VersionEntry:
        """One version's entry. Raises ModelNotFound or VersionNotFound."""
        entry = self.model(model)
        number = int(version) if version.isdecimal() and len(version) < 20 else -1
        if number not in entry.versions or str(number) != version:
            raise VersionNotFound(model, version, entry.versions)
        return entry.versions[number]

    def model(self, name: str) -> ModelEntry:
        """One model's entry. Raises ModelNotFound, or NotReady before the first pass."""
        entry = self.catalog.get(name)
        if entry is None:
            if not self.settled:
                raise NotReady("the server is still looking at its models")
            raise ModelNotFound(name, self.catalog)
        return entry

    @property
    def unavailable(self) -> list[str]:
        """Models that were READY and have no READY version any more."""
        return sorted(
            name
            for name in self._was_ready
            if name in self.catalog and self.catalog[name].default is None
        )

    # -- changing

    async def reconcile(
        self, snapshot: Snapshot, pinned: Mapping[str, AbstractSet[int]] = NONE
    ) -> None:
        """Load and unload until the catalog is what the repository wants.

        `pinned` are versions by model that are wanted whatever the policy says: those of rollouts.
        What fails is noted in the catalog and told to the observer; nothing is raised.
        """
        while actions := plan(
            wanted(snapshot, self.catalog, self._out, pinned), self.catalog, self._out
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
        self.settled = True

    def unload_model(self, model: str) -> None:
        """Let every version of a model go, and keep it out until `reload_model`.

        What is in flight finishes; a model that was taken out has not gone unavailable. Raises as
        `model`.
        """
        entry = self.model(model)
        self._out.add(model)
        self._was_ready.discard(model)
        for number, version in entry.versions.items():
            if version.state is State.READY:
                self._unload(Unload(model, number))
            elif version.state is State.UNAVAILABLE:
                self._keep_out(Load(model, number, version.source))

    def reload_model(self, model: str) -> None:
        """Undo `unload_model`, and have the next `reconcile` try again what failed."""
        self._out.discard(model)
        if model in self.catalog:
            for version in self.catalog[model].versions.values():
                if version.reason:
                    unlike_any = replace(version.source, stamp="")
                    self._put(model, replace(version, source=unlike_any))

    def close(self) -> None:
        """Let everything go at once."""
        for model in list(self.catalog.values()):
            for number in model.versions:
                self._unload(Unload(model.name, number))

    async def _load(self, load: Load) -> None:
        model, number, source = load
        if model in self._out:
            self._keep_out(load)
            return
        before = self._entry(model, number)
        if before is not None and before.engine is None:
            self._put(model, VersionEntry(number, State.LOADING, source))
        started = monotonic()
        try:
            prepared = await asyncio.to_thread(prepare_version, source, self._cache)
        except LoadFailed as error:
            self._failed(load, str(error))
            return
        except Exception as error:  # noqa: BLE001 - one version's trouble stays its own
            self._failed(load, f"{type(error).__name__}: {error}")
            return
        if model in self._out:  # since it began
            prepared.close()
            self._keep_out(load)
            return
        before = self._entry(model, number)
        entry = VersionEntry(
            number,
            State.READY,
            source,
            engine=self._start(model, number, prepared),
            batching_off=prepared.found.profile.reason,
            padding_off=prepared.found.padding.reason,
        )
        self._put(model, entry)
        self._was_ready.add(model)
        if before is not None and before.engine is not None and before.state is State.READY:
            self._let_go(before.engine)
        self._observe(Opened(model, entry, monotonic() - started))

    def _failed(self, load: Load, reason: str) -> None:
        model, number, source = load
        before = self._entry(model, number)
        serving = before is not None and before.state is State.READY
        if model in self._out:
            self._keep_out(load)
        elif before is not None and serving:
            self._put(model, replace(before, source=source, reason=reason))
        else:
            self._put(model, VersionEntry(number, State.UNAVAILABLE, source, reason))
        self._observe(Failed(model, number, reason, serving))

    def _start(self, model: str, number: int, prepared: PreparedVersion) -> BatchedSession:
        count = self._count(model, str(number))

        def observe(event: Ran | Left | BatchingOff) -> None:
            count(event)
            if event.__class__ is BatchingOff:
                self._turned_off(model, number, event.reason)

        return BatchedSession(prepared, wake=self._wake, observe=observe)

    def _keep_out(self, load: Load) -> None:
        """Note a version that would be loaded, had nobody taken its model out."""
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

        def gone() -> None:
            if (now := self._entry(model, number)) is not None and now.engine is engine:
                self._remove(model, number)
                if model in self._out:
                    self._keep_out(Load(model, number, now.source))
            self._observe(Unloaded(model, number))

        self._let_go(engine, gone)

    @staticmethod
    def _let_go(engine: Engine, then: Callable[[], None] = lambda: None) -> None:
        def close() -> None:
            engine.close()
            then()

        engine.leases.when_idle(close)

    def _turned_off(self, model: str, number: int, reason: str) -> None:
        if (entry := self._entry(model, number)) is not None:
            self._put(model, replace(entry, batching_off=reason))
        self._observe(TurnedOff(model, number, reason))

    # -- the catalog: every change is a new one

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
        catalog = {name: entry for name, entry in self.catalog.items() if name != model}
        if versions:
            catalog[model] = ModelEntry(model, dict(sorted(versions.items())))
        self.catalog = dict(sorted(catalog.items()))
