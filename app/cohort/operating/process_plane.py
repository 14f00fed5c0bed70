"""The control plane of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from cohort.errors import NotFound, NotReady, quoted
from cohort.metrics import Metrics
from cohort.operating.description import Description
from cohort.operating.drawings import Drawings
from cohort.operating.live import Counts, LiveView, ProcessCounts
from cohort.operating.metrics_text import MetricsText
from cohort.operating.plane import ControlPlane
from cohort.operating.readiness import Lifecycle, Readiness
from cohort.operating.reading import ModelReader
from cohort.operating.shared_work import in_turns
from cohort.operating.summary import HealthSummary
from cohort.registry import FilteredRegistry, Registry, seconds_until_ready
from cohort.rollouts import Rollouts
from cohort.session import DefaultChain

MAX_VIEWS = 1024
"""Views that are kept, one for each set of models visible to a caller."""


class ProcessPlane(ControlPlane):
    """Reads and actions of operators for this process.

    summary: Writes the result of `health`.

    registry: Holds the catalog of loaded versions.
    metrics: The metrics of the process.
    rollouts: The rollouts of all models.
    lifecycle: Determines whether the process is ready and live.
    reconcile: Begins to load and unload until the registry matches the models folder.
    save: Writes the decisions about rollouts to the state folder.
    problems: Returns the problems of the operator's files, as messages.
    default_chain: The providers of models whose config names no providers.
    """

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        rollouts: Rollouts,
        lifecycle: Lifecycle,
        *,
        reconcile: Callable[[], Awaitable[None]],
        save: Callable[[], Awaitable[None]],
        problems: Callable[[], Sequence[object]],
        default_chain: DefaultChain,
    ) -> None:
        self._registry = registry
        self._metrics = metrics
        self._rollouts = rollouts
        self._lifecycle = lifecycle
        self._reconcile = reconcile
        self._save = save
        self._all = ModelReader(registry, metrics, rollouts, sees_all=True)
        self._views: dict[frozenset[str], ModelReader] = {}
        self._texts = MetricsText(metrics, registry)
        self.summary = HealthSummary(
            registry, rollouts, lifecycle, file_problems=problems, default_chain=default_chain
        )
        self.live = LiveView(ProcessCounts(self.counts).since, self.queued)
        self.drawings = Drawings()

    @property
    def draining(self) -> bool:
        return self._lifecycle.draining

    def begin_draining(self) -> None:
        self._lifecycle.draining = True
        self.drawings.close()

    def limited_to(self, models: frozenset[str] | None) -> ModelReader:
        if models is None:
            return self._all
        view = self._views.get(models)
        if view is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            registry = FilteredRegistry(self._registry, models)
            view = ModelReader(registry, self._metrics, self._rollouts, sees_all=False)
            self._views[models] = view
        return view

    # -- health

    def readiness(self, view: ModelReader | None = None) -> Readiness:
        if view is None or view.sees_all:
            return self._lifecycle.readiness()
        return self._lifecycle.readiness_for(view.registry)

    def liveness(self) -> Readiness:
        return self._lifecycle.liveness()

    async def health(self, view: ModelReader) -> Description:
        return self.summary.describe(view, self.readiness(view))

    # -- models

    async def models(self, view: ModelReader) -> Description:
        return await asyncio.to_thread(view.models)  # there may be thousands of models

    async def model(self, view: ModelReader, name: str) -> Description:
        return view.model(name)

    async def load(self, name: str) -> None:
        self._registry.reload_model(name)
        await self._reconcile()
        await self._registry.loaded(name)
        for entry in self._registry.model(name).versions.values():
            if entry.reason:
                wait = seconds_until_ready([entry], monotonic())
                raise NotReady(f"version {entry.number}: {entry.reason}", retry_after=wait)

    async def unload(self, name: str) -> None:
        self._registry.unload_model(name)

    # -- rollouts

    async def rollouts(self) -> Description:
        return {name: self._rollouts.describe(name) for name in self._rollouts.live}

    def rollout(self, name: str) -> Description:
        """Return a model's rollout. Raises NotFound."""
        description = self._rollouts.describe(name)
        if description is None:
            raise NotFound(f"model {quoted(name)} has no rollout")
        return description

    async def roll_back(self, name: str, variant: str) -> Description:
        self._rollouts.roll_back(name, variant)
        await self._save()
        return self.rollout(name)

    async def clear(self, name: str, variant: str | None = None) -> Description:
        self._rollouts.clear(name, variant)
        await self._save()
        return self.rollout(name)

    async def shadow_examples(self, name: str) -> list[Description]:
        return self._rollouts.examples(name)

    # -- metrics, and the live view

    async def metrics_text(self, accept: str) -> tuple[Sequence[bytes], str]:
        return await self._texts.get(accept)

    async def counts(self) -> Counts:
        """Return the counts of each version, by model and version."""
        return await in_turns(self._metrics.counts())

    def queued(self) -> int:
        """Return the number of requests in queues."""
        return sum(
            entry.engine.waiting
            for model in self._registry.catalog.values()
            for entry in model.versions.values()
            if entry.engine is not None
        )
