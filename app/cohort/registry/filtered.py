"""The part of the catalog that is visible to a caller."""

from __future__ import annotations

from typing import Protocol

from cohort.registry.catalog import Catalog, ModelEntry, VersionEntry, find_model


class Readable(Protocol):
    """Reads a registry, or the part of one that is visible to a caller."""

    @property
    def catalog(self) -> Catalog:
        """Every model and version; another mapping after each change."""

    @property
    def settled(self) -> bool:
        """True once the first load pass has ended."""

    @property
    def unavailable(self) -> list[str]:
        """Models that had a READY version and lost it."""

    def find(self, model: str, version: str | None = None) -> VersionEntry:
        """Return a READY version's entry. Raises ModelNotFound, VersionNotFound or NotReady."""

    def version(self, model: str, version: str) -> VersionEntry:
        """Return the entry of one version. Raises ModelNotFound or VersionNotFound."""

    def model(self, name: str) -> ModelEntry:
        """Return the entry of one model. Raises ModelNotFound or NotReady."""

    def demand(self, model: str) -> None:
        """Load a model that is loaded on demand, after a request for it got NotReady.

        Raises NotLoaded while it loads, and NotReady if it cannot be loaded now.
        """

    async def load_over(self, model: str) -> None:
        """Wait until a load of a model ends; return at once if it has no load."""


class FilteredRegistry:
    """A registry limited to the models that are visible to a caller.

    All answers about other models, suggestions included, are the same as for a model that does not
    exist.

    models: The names of the visible models, which need not exist.
    """

    def __init__(self, registry: Readable, models: frozenset[str]) -> None:
        self._registry = registry
        self._models = models
        self._whole: Catalog | None = None  # the catalog that `_visible` was made from
        self._visible: Catalog = {}

    @property
    def catalog(self) -> Catalog:
        """The visible models; the same mapping until the registry's catalog changes."""
        whole = self._registry.catalog
        if whole is not self._whole:
            self._whole = whole
            self._visible = {name: one for name, one in whole.items() if name in self._models}
        return self._visible

    @property
    def settled(self) -> bool:
        """True once the first load pass has ended."""
        return self._registry.settled

    @property
    def unavailable(self) -> list[str]:
        """Visible models that had a READY version and lost it."""
        return [name for name in self._registry.unavailable if name in self._models]

    def find(self, model: str, version: str | None = None) -> VersionEntry:
        """Return `Registry.find` for a visible model."""
        if self._registry.catalog:  # without any, `find` raises NotReady
            self.model(model)
        return self._registry.find(model, version)

    def version(self, model: str, version: str) -> VersionEntry:
        """Return `Registry.version` for a visible model."""
        self.model(model)
        return self._registry.version(model, version)

    def model(self, name: str) -> ModelEntry:
        """Return `Registry.model` for a visible model."""
        return find_model(name, self.catalog, settled=self.settled)

    def demand(self, model: str) -> None:
        """Call `Registry.demand` for a visible model."""
        self.model(model)
        self._registry.demand(model)

    async def load_over(self, model: str) -> None:
        """Await `Registry.load_over`."""
        await self._registry.load_over(model)
