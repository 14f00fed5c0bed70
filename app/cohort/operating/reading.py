"""Reads of models: of all models, or of those that a caller may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from cohort.errors import Forbidden, NotFound, quoted
from cohort.metrics import Metrics, VersionMetrics
from cohort.operating.description import (
    Description,
    ServedModel,
    class_names,
    describe_model,
    describe_states,
    describe_version,
    list_served,
)
from cohort.operating.drawings import NOT_ON_DISK, Drawable
from cohort.registry import (
    RESTING,
    Catalog,
    Engine,
    Readable,
    State,
    TextEngine,
    TokenCounter,
    VersionEntry,
)
from cohort.repository import GENAI_FILE
from cohort.rollouts import Rollouts
from cohort.tensors import only_vectors


class GivenFiles(NamedTuple):
    """Files of a loaded version.

    paths: Their paths, by file name.
    are_on_disk: Returns True if they have not changed since they were loaded.
    """

    paths: Mapping[str, Path]
    are_on_disk: Callable[[], bool]


class ModelReader:
    """Reads the models that a caller may see.

    registry: The registry, limited to these models.
    metrics: The metrics of the process.
    rollouts: The rollouts of all models.
    sees_all: True if the caller may see all models and the problems of the process.
    """

    def __init__(
        self, registry: Readable, metrics: Metrics, rollouts: Rollouts, *, sees_all: bool
    ) -> None:
        self.registry = registry
        self.sees_all = sees_all
        self._metrics = metrics
        self._rollouts = rollouts
        self._served: tuple[Catalog, tuple[ServedModel, ...]] | None = None

    def states(self) -> Description:
        """Return the states of every model's versions, by the model's name."""
        return {name: describe_states(model) for name, model in self.registry.catalog.items()}

    def models(self) -> Description:
        """Return every model with the states of its versions."""
        return {"models": [describe_model(entry) for entry in self.registry.catalog.values()]}

    def model(self, name: str) -> Description:
        """Return one model with its versions in full, and any rollout. Raises ModelNotFound."""
        entry = self.registry.model(name)
        description = describe_model(entry)
        description["versions"] = [describe_version(one, entry) for one in entry.versions.values()]
        rollout = self._rollouts.describe(name)
        return description if rollout is None else {**description, "rollout": rollout}

    def version(self, name: str, version: str) -> Description:
        """Return one version in full. Raises ModelNotFound or VersionNotFound."""
        entry = self.registry.version(name, version)
        return {"model": name, **describe_version(entry, self.registry.model(name))}

    def served(self) -> tuple[ServedModel, ...]:
        """Return every READY version; the same tuple until the catalog changes."""
        catalog = self.registry.catalog
        if self._served is None or self._served[0] is not catalog:
            self._served = catalog, tuple(list_served(catalog))
        return self._served[1]

    def ready(self, name: str, version: str | None = None) -> str:
        """Return the version that answers. Raises ModelNotFound, VersionNotFound or NotReady."""
        return str(self.registry.find(name, version).number)

    def given_out(self, name: str, version: str | None = None) -> GivenFiles:
        """Return the files of a READY version, for download.

        Raises Forbidden unless the model's config allows downloads. Raises NotFound if the files on
        disk have changed since they were loaded, and as `ready`.
        """
        entry = self.registry.find(name, version)
        config = entry.source.config
        if config is None or not config.playground.download:
            raise Forbidden(
                f"downloads of {quoted(name)} are not allowed; to allow them, set "
                "`playground: {download: true}` in its config.yaml"
            )
        files = _engine_of(entry, name).describe().files
        folder = entry.source.path.parent
        return GivenFiles({file: folder / file for file in files}, entry.source.is_on_disk)

    def drawable(self, name: str, version: str | None = None) -> Drawable:
        """Return a READY version to draw. Raises as `given_out`, except for Forbidden."""
        entry = self.registry.find(name, version)
        engine = _engine_of(entry, name)
        described = engine.describe()
        key = (entry.source.path, *described.files.items(), *described.placement.nodes.items())
        return Drawable(
            key, entry.source.path, engine.assigned_nodes, entry.source.is_on_disk, name
        )

    def text_models(self) -> list[str]:
        """Return the names of the language models and encoders of text that answer requests."""
        return [
            name
            for name, model in self.registry.catalog.items()
            if any(map(_takes_text, model.versions.values()))
        ]

    def index(self) -> list[Description]:
        """Return every version of every model: its name, state, and the reason of the state."""
        return [
            {
                "name": model.name,
                "version": str(entry.number),
                "state": entry.state.value,
                "reason": entry.reason,
            }
            for model in self.registry.catalog.values()
            for entry in model.versions.values()
        ]

    def usage(
        self, name: str | None = None, version: str | None = None
    ) -> list[tuple[str, str, VersionMetrics]]:
        """Return the metrics of READY versions, each with its model and version.

        name: The model; default None: all models.
        version: The version; default None: all READY versions.

        Raises ModelNotFound, VersionNotFound or NotReady.
        """
        if name is None:
            models = list(self.registry.catalog.values())
        else:
            self.registry.find(name, version)
            models = [self.registry.model(name)]
        return [
            (model.name, str(number), self._metrics.version(model.name, str(number)))
            for model in models
            for number, entry in model.versions.items()
            if entry.state is State.READY and version in {None, str(number)}
        ]

    def version_for_label(self, name: str, label: str) -> str:
        """Return the version of the variant named `label`. Raises ModelNotFound or NotFound."""
        self.registry.model(name)
        return str(self._rollouts.version_of(name, label))


def _takes_text(entry: VersionEntry) -> bool:
    """Return True for a language model, and for an encoder of text without names of classes.

    If a request loads the model, only a genai_config.json shows that it is a language model.
    """
    engine = entry.engine
    if engine is None:
        return entry.reason == RESTING and entry.source.path.name == GENAI_FILE
    if isinstance(engine, TextEngine):
        return True
    counts = isinstance(engine, TokenCounter)
    return counts and only_vectors(engine.outputs) is not None and not class_names(engine)


def _engine_of(entry: VersionEntry, model: str) -> Engine:
    """Return the engine that was loaded from the files on disk.

    Raises NotFound if the files are known to have changed.
    """
    if entry.engine is None or entry.outdated:
        raise NotFound(NOT_ON_DISK.format(quoted(model)))
    return entry.engine
