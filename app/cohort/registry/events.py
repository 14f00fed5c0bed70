"""The events of a registry."""

from __future__ import annotations

from typing import NamedTuple

from cohort.registry.catalog import VersionEntry


class VersionReady(NamedTuple):
    """A version is READY, after `seconds` of loading."""

    model: str
    version: VersionEntry
    seconds: float


class VersionFailed(NamedTuple):
    """A version could not be loaded.

    serving: True if its previous files still serve.
    retry_in: Seconds until the next attempt; None: when its files change.
    """

    model: str
    number: int
    reason: str
    serving: bool
    retry_in: float | None = None


class VersionUnloaded(NamedTuple):
    """A version is closed and its memory free."""

    model: str
    number: int


class VersionUnbatched(NamedTuple):
    """Batching was disabled for a version under load."""

    model: str
    number: int
    reason: str


class VersionLeftLoop(NamedTuple):
    """Runs of a version no longer execute on the event loop."""

    model: str
    number: int
    reason: str


class VersionMeasured(NamedTuple):
    """A loaded version was measured, and uses the result from now on."""

    model: str
    version: VersionEntry


class VersionProfileStale(NamedTuple):
    """The runs of a version differ from its profile; it is measured again."""

    model: str
    number: int
    reason: str


RegistryEvent = (
    VersionReady
    | VersionFailed
    | VersionUnloaded
    | VersionUnbatched
    | VersionLeftLoop
    | VersionMeasured
    | VersionProfileStale
)
