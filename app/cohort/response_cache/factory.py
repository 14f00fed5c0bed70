"""Factory that adds caches to the engines of another factory."""

from __future__ import annotations

from collections.abc import Callable

from cohort.errors import LoadFailed
from cohort.registry import BatchEngine, EngineFactory, OpenedVersion, Site, Source
from cohort.registry.wrapping import FactoryAround, OpenedAround
from cohort.response_cache.counts import CacheCounts
from cohort.response_cache.engine import CachedEngine, HashOnThread
from cohort.response_cache.store import tagger
from cohort.session import CancellationToken

NO_PIPELINES = "the answers of a pipeline change with its members; give them a cache each"


class CachedEngines(FactoryAround):
    """A factory that wraps engines whose config has `cache`, to cache their answers.

    Implements `EngineFactory`.

    engines: The other factory.
    counts: Returns the counts of a model's version.
    on_thread: Computes the keys of large inputs on a thread.
    changes_alone: True (default) if the answers change only with the version. False for pipelines,
        whose answers change with their models; then `cache` is rejected.
    """

    def __init__(
        self,
        engines: EngineFactory,
        counts: Callable[[str, int], CacheCounts],
        on_thread: HashOnThread,
        *,
        changes_alone: bool = True,
    ) -> None:
        super().__init__(engines)
        self._changes_alone = changes_alone
        self._counts = counts
        self._on_thread = on_thread

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """See `EngineFactory`."""
        opened = self._engines.open(source, token)
        config = source.config
        if config is None or config.cache is None:
            return opened
        if not self._changes_alone:
            opened.close()
            raise LoadFailed(f"{source.model}/config.yaml: cache: {NO_PIPELINES}")
        if config.state:
            opened.close()
            name = source.name
            raise LoadFailed(
                f"{name}/config.yaml: cache: answers of a model with state depend on its "
                "sequence: remove cache or state"
            )
        maximum = int(config.cache.max_mb * 2**20)
        tagger()  # import the library on this thread, not on the event loop

        def wrap(engine: BatchEngine, site: Site) -> CachedEngine:
            counts = self._counts(site.model, site.number)
            return CachedEngine(engine, maximum, counts, self._on_thread)

        return OpenedAround(opened, opened.signature, "cache", wrap)
