"""The picture of what is loaded that everybody reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from app.batching import Batcher
from app.profiling import Profile, ProfileResult
from app.repository import Manifest, ModelConfig
from app.session import Session
from app.tensors import Arrays


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


class Loaded:
    """An open version with its batcher; `leases` counts the requests that use it.

    `example` is inputs the model takes, published or made up; None where none were found.
    `exclusive` is the same model open for runs that nothing runs beside, where that is another
    session.
    """

    __slots__ = (
        "batcher",
        "example",
        "exclusive",
        "found",
        "leases",
        "manifest",
        "on_idle",
        "session",
        "timeout",
    )

    def __init__(
        self,
        session: Session,
        batcher: Batcher,
        found: ProfileResult,
        timeout: float,
        manifest: Manifest | None,
        example: Arrays | None = None,
        exclusive: Session | None = None,
    ) -> None:
        self.session, self.exclusive = session, exclusive
        self.batcher = batcher
        self.found = found
        self.timeout = timeout
        self.manifest = manifest
        self.example = example
        self.leases = 0
        self.on_idle: Callable[[], None] | None = None

    @property
    def profile(self) -> Profile:
        """How long its runs take."""
        return self.found.profile

    def close(self) -> None:
        """Refuse what still waits, and let go of the model."""
        self.batcher.close()
        self.session.close()
        if self.exclusive is not None:
            self.exclusive.close()

    def release(self, count: int = 1) -> None:
        """Give leases back."""
        self.leases -= count
        if self.on_idle is not None and not self.leases:
            self.on_idle()

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` once nobody holds a lease; at once where nobody does."""
        self.on_idle = then
        if not self.leases:
            then()


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version in the catalog. `reason` says why it is UNAVAILABLE; `loaded` is set when READY.

    `source` is what it was loaded from: it is loaded anew when that changes.
    """

    number: int
    state: State
    source: Source
    reason: str = ""
    loaded: Loaded | None = None
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
