"""The part of the catalog that a caller may see."""

from __future__ import annotations

from typing import Protocol

from cohort.registry.catalog import Catalog, ModelEntry, VersionEntry, find_model


class Readable(Protocol):
    """What can be read of a registry, or of the part of one that a caller may see."""

    @property
    def catalog(self) -> Catalog:
        """Every model and version; another mapping after each change."""

    @property
    def settled(self) -> bool:
        """Whether the first load pass is over."""

    @property
    def unavailable(self) -> list[str]:
        """Models that had a READY version and have none now."""

    def find(self, model: str, version: str | None = None) -> VersionEntry:
        """The entry of a READY version. Raises ModelNotFound, VersionNotFound or NotReady."""

    def version(self, model: str, version: str) -> VersionEntry:
        """The entry of one version. Raises ModelNotFound or VersionNotFound."""

    def model(self, name: str) -> ModelEntry:
        """The entry of one model. Raises ModelNotFound or NotReady."""

    def demand(self, model: str) -> None:
        """Have a model loaded that is loaded on demand; its caller was refused NotReady.

        Raises NotLoaded while it loads, and NotReady where it cannot be now.
        """

    async def load_over(self, model: str) -> None:
        """Wait until a load of a model is over; not at all where none goes on."""


class SeenRegistry:
    """A registry as it looks to callers who may see some of its models.

    Any other model is unknown to them: what they are told of it is what they are told of a model
    that does not exist, suggestions included.

    models: The names of the models they may see, whether or not those exist.
    """

    def __init__(self, registry: Readable, models: frozenset[str]) -> None:
        self._registry = registry
        self._models = models
        self._whole: Catalog | None = None  # the catalog that `_seen` is a part of
        self._seen: Catalog = {}

    @property
    def catalog(self) -> Catalog:
        """The models that may be seen; the same mapping until the registry's catalog changes."""
        whole = self._registry.catalog
        if whole is not self._whole:
            self._whole = whole
            self._seen = {name: one for name, one in whole.items() if name in self._models}
        return self._seen

    @property
    def settled(self) -> bool:
        """Whether the first load pass is over."""
        return self._registry.settled

    @property
    def unavailable(self) -> list[str]:
        """Those of the models that may be seen which had a READY version and have none now."""
        return [name for name in self._registry.unavailable if name in self._models]

    def find(self, model: str, version: str | None = None) -> VersionEntry:
        """As `Registry.find`."""
        if self._registry.catalog:  # which says what there is to say without any
            self.model(model)
        return self._registry.find(model, version)

    def version(self, model: str, version: str) -> VersionEntry:
        """As `Registry.version`."""
        self.model(model)
        return self._registry.version(model, version)

    def model(self, name: str) -> ModelEntry:
        """As `Registry.model`."""
        return find_model(name, self.catalog, settled=self.settled)

    def demand(self, model: str) -> None:
        """As `Registry.demand`."""
        self.model(model)
        self._registry.demand(model)

    async def load_over(self, model: str) -> None:
        """As `Registry.load_over`."""
        await self._registry.load_over(model)
