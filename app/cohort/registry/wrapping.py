"""Engines in front of other engines: the common part of their factories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cohort.errors import LoadFailed
from cohort.registry.engine import (
    BatchEngine,
    Engine,
    EngineEvent,
    EngineFactory,
    Measured,
    OpenedVersion,
    Site,
    Unmeasured,
)
from cohort.repository import Published
from cohort.session import Signature


class FactoryAround:
    """A factory around another factory; subclasses implement `open`.

    engines: The inner factory.
    """

    def __init__(self, engines: EngineFactory) -> None:
        self._engines = engines
        self.file = engines.file

    def check_engines(self) -> None:
        """See `EngineFactory`."""
        self._engines.check_engines()

    def rest(self) -> None:
        """See `EngineFactory`."""
        self._engines.rest()

    def close(self) -> None:
        """See `EngineFactory`."""
        self._engines.close()


@dataclass(frozen=True, slots=True)
class OpenedAround:
    """An open version whose engine will be wrapped in another. Implements `OpenedVersion`.

    opened: The version.
    signature: Its inputs and outputs for callers.
    keys: The keys of the config that require the wrapping, for messages.
    wrap: Makes the outer engine around an inner one, at a site.
    closed: Called once it is closed without being started; default: no effect.
    """

    opened: OpenedVersion
    signature: Signature
    keys: str
    wrap: Callable[[BatchEngine, Site], Engine]
    closed: Callable[[], None] = lambda: None

    @property
    def properties(self) -> Mapping[str, str]:
        """The metadata of its file."""
        return self.opened.properties

    @property
    def published(self) -> Published:
        """Its manifest and the manifest's signer."""
        return self.opened.published

    def start(self, site: Site) -> Engine:
        """See `OpenedVersion`."""

        def observe(event: EngineEvent) -> None:
            if isinstance(event, Measured | Unmeasured):
                event = event._replace(engine=engine)
            site.observe(event)

        inner = self.opened.start(Site(site.model, site.number, observe, site.directory))
        tensors = inner.by_tensors
        if tensors is None:
            inner.close()
            raise LoadFailed(f"{self.keys} of its config is only for models that accept tensors")
        engine = self.wrap(tensors, site)
        return engine

    def close(self) -> None:
        """See `OpenedVersion`."""
        self.opened.close()
        self.closed()
