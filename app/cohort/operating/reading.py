"""What can be read of models: of all of them, or of those that a caller may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from cohort.errors import Forbidden, NotFound, quoted
from cohort.metrics import Metrics, VersionMetrics
from cohort.operating.description import (
    Description,
    ServedModel,
    describe_model,
    describe_states,
    describe_version,
    list_served,
)
from cohort.operating.drawings import NOT_ON_DISK, Drawable
from cohort.registry import Catalog, Engine, Readable, State, VersionEntry
from cohort.rollouts import Rollouts


class GivenFiles(NamedTuple):
    """Files of a version that serves.

    paths: Where they are, by their names.
    are_on_disk: Looks whether they are still those that serve.
    """

    paths: Mapping[str, Path]
    are_on_disk: Callable[[], bool]


class ModelReader:
    """What can be read of models.

    seen: Holds the catalog, as far as it may be seen.
    metrics: What was counted.
    rollouts: The rollouts of all models.
    sees_all: Whether all models may be seen, and what is told of the process as a whole.
    """

    def __init__(
        self, seen: Readable, metrics: Metrics, rollouts: Rollouts, *, sees_all: bool
    ) -> None:
        self.seen = seen
        self.sees_all = sees_all
        self._metrics = metrics
        self._rollouts = rollouts
        self._served: tuple[Catalog, tuple[ServedModel, ...]] | None = None

    def states(self) -> Description:
        """The states of every model's versions, by the model's name."""
        return {name: describe_states(model) for name, model in self.seen.catalog.items()}

    def models(self) -> Description:
        """Every model with the states of its versions."""
        return {"models": [describe_model(entry) for entry in self.seen.catalog.values()]}

    def model(self, name: str) -> Description:
        """One model with its versions in full, and its rollout if any. Raises ModelNotFound."""
        entry = self.seen.model(name)
        description = describe_model(entry)
        description["versions"] = [describe_version(one, entry) for one in entry.versions.values()]
        rollout = self._rollouts.describe(name)
        return description if rollout is None else {**description, "rollout": rollout}

    def version(self, name: str, version: str) -> Description:
        """One version in full. Raises ModelNotFound or VersionNotFound."""
        entry = self.seen.version(name, version)
        return {"model": name, **describe_version(entry, self.seen.model(name))}

    def served(self) -> tuple[ServedModel, ...]:
        """Every READY version; the same tuple until the catalog changes."""
        catalog = self.seen.catalog
        if self._served is None or self._served[0] is not catalog:
            self._served = catalog, tuple(list_served(catalog))
        return self._served[1]

    def ready(self, name: str, version: str | None = None) -> str:
        """The version that would answer. Raises ModelNotFound, VersionNotFound or NotReady."""
        return str(self.seen.find(name, version).number)

    def given_out(self, name: str, version: str | None = None) -> GivenFiles:
        """The files of a READY version, for whoever wants to have them.

        Raises Forbidden unless the model's config gives them out, NotFound where others are on disk
        than serve, and as `ready`.
        """
        entry = self.seen.find(name, version)
        config = entry.source.config
        if config is None or not config.playground.download:
            raise Forbidden(
                f"the files of {quoted(name)} are not given out; `playground: {{download: true}}` "
                "in its config.yaml has it do so"
            )
        files = _engine_of(entry, name).describe().files
        folder = entry.source.path.parent
        return GivenFiles({file: folder / file for file in files}, entry.source.is_on_disk)

    def drawable(self, name: str, version: str | None = None) -> Drawable:
        """A READY version, to be drawn. Raises as `given_out`, but for Forbidden."""
        entry = self.seen.find(name, version)
        engine = _engine_of(entry, name)
        described = engine.describe()
        key = (entry.source.path, *described.files.items(), *described.placement.nodes.items())
        return Drawable(
            key, entry.source.path, engine.assigned_nodes, entry.source.is_on_disk, name
        )

    def index(self) -> list[Description]:
        """Every version of every model: its name, state, and the reason of the state."""
        return [
            {
                "name": model.name,
                "version": str(entry.number),
                "state": entry.state.value,
                "reason": entry.reason,
            }
            for model in self.seen.catalog.values()
            for entry in model.versions.values()
        ]

    def usage(
        self, name: str | None = None, version: str | None = None
    ) -> list[tuple[str, str, VersionMetrics]]:
        """The metrics of READY versions, each with its model and version.

        name: The model; default None: all models.
        version: The version; default None: all READY versions.

        Raises ModelNotFound, VersionNotFound or NotReady.
        """
        if name is None:
            models = list(self.seen.catalog.values())
        else:
            self.seen.find(name, version)
            models = [self.seen.model(name)]
        return [
            (model.name, str(number), self._metrics.version(model.name, str(number)))
            for model in models
            for number, entry in model.versions.items()
            if entry.state is State.READY and version in {None, str(number)}
        ]

    def version_for_label(self, name: str, label: str) -> str:
        """The version of the variant named `label`. Raises ModelNotFound or NotFound."""
        self.seen.model(name)
        return str(self._rollouts.version_of(name, label))


def _engine_of(entry: VersionEntry, model: str) -> Engine:
    """What serves the files on disk. Raises NotFound where those are known to be others."""
    if entry.engine is None or entry.outdated:
        raise NotFound(NOT_ON_DISK.format(quoted(model)))
    return entry.engine
