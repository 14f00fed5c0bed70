"""The catalog: an immutable snapshot of all models and versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from app.errors import ModelNotFound, NotReady, check_model_name
from app.registry.engine import Engine
from app.repository import ModelConfig


class State(StrEnum):
    """The state of a version."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


UNLOADED = "unloaded"
"""The reason of a version whose model an operator unloaded."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a version is loaded from. It is reloaded when that changes.

    path: Its model.onnx.
    stamp: Changes whenever a file of the version does.
    config: The model's config; None where it cannot be used.
    problem: Why it cannot be used; default "".
    """

    path: Path
    stamp: str
    config: ModelConfig | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version in the catalog.

    number: The version number.
    state: Its state.
    source: What it was loaded from, or what could not be loaded.
    reason: Why it is UNAVAILABLE, or why a READY one still serves its former files; default "".
    engine: What answers its requests; None unless it is READY or UNLOADING.
    batching_off: Why its requests run one by one although its config allows batches; default "".
    padding_off: Why its requests are not padded although its config says so; default "".
    """

    number: int
    state: State
    source: Source
    reason: str = ""
    engine: Engine | None = None
    batching_off: str = ""
    padding_off: str = ""


@dataclass(frozen=True)
class ModelEntry:
    """One model in the catalog, with its versions by number."""

    name: str
    versions: Mapping[int, VersionEntry]

    @cached_property
    def default(self) -> VersionEntry | None:
        """The highest READY version, which answers where a request names none; or None."""
        ready = [one for one in self.versions.values() if one.state is State.READY]
        return max(ready, key=lambda one: one.number, default=None)

    @cached_property
    def ready(self) -> frozenset[int]:
        """The numbers of the READY versions."""
        return frozenset(n for n, one in self.versions.items() if one.state is State.READY)


Catalog = Mapping[str, ModelEntry]
"""Every model by name."""


def find_model(name: str, catalog: Catalog, *, settled: bool) -> ModelEntry:
    """The entry of one model. `settled` is whether the first load pass is over.

    Raises ModelNotFound, or NotReady while it is not.
    """
    check_model_name(name)
    entry = catalog.get(name)
    if entry is None:
        if not settled:
            raise NotReady("the server is still loading its models")
        raise ModelNotFound(name, catalog)
    return entry
