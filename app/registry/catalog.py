"""The picture of what is loaded that everybody reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from app.registry.engine import Engine
from app.repository import ModelConfig


class State(StrEnum):
    """Where a version is in its life."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


UNLOADED = "unloaded"
"""The reason of a version whose model an operator took out."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a version is loaded from; equal sources give equal versions."""

    path: Path
    stamp: str
    config: ModelConfig | None
    problem: str = ""  # the config's, where it has one


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version in the catalog. `reason` says why it is UNAVAILABLE; `engine` is set when READY.

    `source` is what it was loaded from: it is loaded anew when that changes.
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
    """One model in the catalog; `default`, its highest READY version, answers by default."""

    name: str
    versions: Mapping[int, VersionEntry]

    @cached_property
    def default(self) -> VersionEntry | None:
        ready = [one for one in self.versions.values() if one.state is State.READY]
        return max(ready, key=lambda one: one.number, default=None)

    @cached_property
    def ready(self) -> frozenset[int]:
        """The versions that may answer."""
        return frozenset(n for n, one in self.versions.items() if one.state is State.READY)


Catalog = Mapping[str, ModelEntry]
