"""Engines whose config says that answers are kept, of a factory of any kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cohort.errors import LoadFailed
from cohort.registry import (
    Engine,
    EngineEvent,
    EngineFactory,
    Measured,
    OpenedVersion,
    Site,
    Source,
    Unmeasured,
)
from cohort.repository import Published
from cohort.response_cache.counts import CacheCounts
from cohort.response_cache.engine import CachedEngine, HashOnThread
from cohort.session import CancellationToken, Signature


class CachedEngines:
    """Makes engines as another factory does, which keep answers where a config has `cache`.

    Implements `EngineFactory`.

    engines: The other factory.
    counts: Gives the counts of a model's version.
    on_thread: Where keys of large inputs are made.
    changes_alone: Whether the answers of a version change with it only; not those of pipelines,
        whose members change. Default True.
    """

    def __init__(
        self,
        engines: EngineFactory,
        counts: Callable[[str, int], CacheCounts],
        on_thread: HashOnThread,
        *,
        changes_alone: bool = True,
    ) -> None:
        self._changes_alone = changes_alone
        self._engines = engines
        self._counts = counts
        self._on_thread = on_thread
        self.file = engines.file

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """See `EngineFactory`."""
        opened = self._engines.open(source, token)
        config = source.config
        if config is None or config.cache is None:
            return opened
        if not self._changes_alone:
            opened.close()
            raise LoadFailed(
                "config.yaml: cache: the answers of a pipeline change with its members; give them "
                "a cache each"
            )
        if config.state:
            opened.close()
            name = source.path.parent.parent.name
            raise LoadFailed(
                f"{name}/config.yaml: cache: a model with state answers by its sequence, so that "
                "no answer may be kept: leave out cache or state"
            )
        maximum = int(config.cache.max_mb * 2**20)
        return OpenedCached(opened, maximum, self._counts, self._on_thread)

    def look(self) -> None:
        """See `EngineFactory`."""
        self._engines.look()

    def rest(self) -> None:
        """See `EngineFactory`."""
        self._engines.rest()

    def close(self) -> None:
        """See `EngineFactory`."""
        self._engines.close()


@dataclass(frozen=True, slots=True)
class OpenedCached:
    """A version that is open, whose answers will be kept. Implements `OpenedVersion`."""

    _opened: OpenedVersion
    _maximum: int
    _counts: Callable[[str, int], CacheCounts]
    _on_thread: HashOnThread

    @property
    def signature(self) -> Signature:
        """What callers must know of it."""
        return self._opened.signature

    @property
    def properties(self) -> dict[str, str]:
        """The metadata of its file."""
        return dict(self._opened.properties)

    @property
    def published(self) -> Published:
        """What its manifest says, and who signed it."""
        return self._opened.published

    def start(self, site: Site) -> Engine:
        """See `OpenedVersion`."""

        def observe(event: EngineEvent) -> None:
            if isinstance(event, Measured | Unmeasured):
                event = event._replace(engine=engine)
            site.observe(event)

        inner = self._opened.start(Site(site.model, site.number, observe, site.directory))
        tensors = inner.by_tensors
        if tensors is None:
            inner.close()
            raise LoadFailed("cache of its config is for models that take tensors")
        counts = self._counts(site.model, site.number)
        engine = CachedEngine(tensors, self._maximum, counts, self._on_thread)
        return engine

    def close(self) -> None:
        """See `OpenedVersion`."""
        self._opened.close()
