"""The catalog of a registry: reading and replacing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from time import monotonic

from cohort.errors import NotReady, VersionNotFound, quoted
from cohort.registry.actions import Load
from cohort.registry.catalog import (
    RESTING,
    UNLOADED,
    Catalog,
    ModelEntry,
    State,
    VersionEntry,
    find_model,
    seconds_until_ready,
    why_not_ready,
)
from cohort.registry.engine import BatchEngine
from cohort.repository import Signatures, Snapshot


class PublishedCatalog:
    """The catalog for all readers. Each change makes a new catalog.

    catalog: Every model and version; replaced as a whole by each change.
    settled: True once the first load pass has ended.
    may_be_empty: True if an empty catalog means only that no model was requested; default False.
    """

    def __init__(self) -> None:
        self.catalog: Catalog = {}
        self.settled = False
        self.may_be_empty = False
        self._once_ready: frozenset[str] = frozenset()  # models that have had a READY version
        self._unavailable_of: tuple[Catalog, frozenset[str]] | None = None
        self._unavailable: list[str] = []  # the result for `_unavailable_of`
        self._unloaded: dict[str, str] = {}  # models that must not be loaded, with the reason
        self._signatures: dict[str, Signatures] = {}  # on disk, by model

    def find(self, model: str, version: str | None = None) -> VersionEntry:
        """Return the entry of `version`, or of the highest READY version if it is None.

        Raises ModelNotFound, VersionNotFound or NotReady. NotReady also if the server has no models
        at all, unless it `may_be_empty`: another replica may have them.
        """
        if not self.catalog and self.settled and not self.may_be_empty:
            raise NotReady("the server has no models")
        entry = self.model(model)
        chosen = entry.default if version is None else self.version(model, version)
        if chosen is None:
            if model in self._unloaded:
                raise NotReady(
                    f"model {quoted(model)} is {self._unloaded[model]}", retry_after=None
                )
            raise NotReady(
                f"model {quoted(model)} has no ready version: "
                f"{why_not_ready(entry.versions.values())}",
                retry_after=seconds_until_ready(entry.versions.values(), monotonic()),
            )
        if chosen.state is not State.READY:
            raise NotReady(
                f"model {quoted(model)}: {why_not_ready([chosen])}",
                retry_after=seconds_until_ready([chosen], monotonic()),
            )
        return chosen

    def lease(self, model: str, version: str | None = None) -> BatchEngine:
        """See `VersionDirectory`."""
        try:
            engine = self.find(model, version).by_tensors(model)
        except NotReady:
            self.demand(model)
            raise
        engine.leases.count += 1
        return engine

    def version(self, model: str, version: str) -> VersionEntry:
        """Return the entry of one version. Raises ModelNotFound or VersionNotFound."""
        entry = self.model(model)
        number = int(version) if version.isdecimal() and len(version) < 20 else -1
        if number not in entry.versions or str(number) != version:
            raise VersionNotFound(model, version, entry.versions)
        return entry.versions[number]

    def model(self, name: str) -> ModelEntry:
        """Return the entry of a model. Raises ModelNotFound, or NotReady before `settled`."""
        return find_model(name, self.catalog, settled=self.settled)

    def demand(self, model: str) -> None:
        """Do nothing: this registry does not load on demand."""

    async def load_over(self, model: str) -> None:
        """Do nothing: this registry does not load on demand."""

    @property
    def unavailable(self) -> list[str]:
        """Models that lost all their READY versions, except those that an operator unloaded."""
        catalog, once_ready = self.catalog, self._once_ready
        known = self._unavailable_of
        if known is None or known[0] is not catalog or known[1] is not once_ready:
            # Probes ask at least four times a second, and both change rarely.
            self._unavailable_of = catalog, once_ready
            self._unavailable = sorted(
                name for name in once_ready if name in catalog and catalog[name].default is None
            )
        return self._unavailable

    @property
    def serving(self) -> dict[str, bool]:
        """For each model by name, True if it serves or is loaded on demand.

        Models that an operator unloaded are left out, and all models while `settled` is False.
        """
        return dict(self._each_serving())

    def _each_serving(self) -> Iterator[tuple[str, bool]]:
        for name, model in self.catalog.items():
            if self.settled and self._unloaded.get(name) != UNLOADED:
                yield name, bool(model.ready) or self._unloaded.get(name) == RESTING

    @property
    def serves_nothing(self) -> bool:
        """True if no model serves, unless an operator unloaded all models."""
        wanted = False
        for _, serves in self._each_serving():  # for probes, the first that serves is enough
            if serves:
                return False
            wanted = True
        return wanted or not self.catalog

    # -- for the registry

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

    def _versions_of(self, model: str) -> list[tuple[int, VersionEntry]]:
        """Return the versions of a model; [] if it is not known."""
        return list(self.catalog[model].versions.items()) if model in self.catalog else []

    def _mark_unloaded(self, load: Load) -> None:
        """Record a version that is not loaded because its model is unloaded."""
        model, number, source = load
        entry = self._entry(model, number)
        if entry is not None and entry.state is State.UNLOADING:
            self._put(model, replace(entry, source=source))
        else:
            self._put(model, VersionEntry(number, State.UNAVAILABLE, source, self._unloaded[model]))
