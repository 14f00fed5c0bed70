"""The control plane: the interface for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from importlib.metadata import version as distribution_version
from time import monotonic

from app.control_plane.description import Description, describe_failures, describe_held_back
from app.control_plane.reading import NO_READY_VERSION, ModelReader, Readiness
from app.control_plane.shared_work import Shared, in_turns
from app.errors import MOST_LISTED, NotFound, NotReady, quoted, quoted_names
from app.metrics import Metrics, negotiate
from app.registry import Registry, SeenRegistry, seconds_until_ready
from app.rollouts import Rollouts
from app.scheduling import Trouble
from app.session import DefaultChain

MAX_SEEN = 1024
"""Views that are kept, one for each set of models that callers may see."""


VERSION = distribution_version("cohort")  # read once: it is in a file


class ControlPlane(ModelReader):
    """What operators may read and do, for all adapters.

    draining: Whether the process has begun to stop; never reset.

    registry: Holds the catalog of loaded versions.
    metrics: The metrics of the process.
    rollouts: The rollouts of all models.
    reconcile: Begins to load and unload until the registry matches the models folder.
    save: Writes the decisions about rollouts to the state folder.
    problems: Returns the problems of the operator's files, as messages.
    loading_reason: Returns the reason why the first models are not loaded yet.
    unready: Returns what else keeps the process from being ready; empty where nothing does.
    troubles: Returns what is wrong with the process itself; default: nothing.
    allow_empty: Whether the process may be ready while no model serves.
    default_chain: What models run on whose config names no providers.
    """

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        rollouts: Rollouts,
        *,
        reconcile: Callable[[], Awaitable[None]],
        save: Callable[[], Awaitable[None]],
        problems: Callable[[], Sequence[object]],
        loading_reason: Callable[[], str],
        unready: Callable[[], str] = str,
        troubles: Callable[[], Sequence[Trouble]] = tuple,
        allow_empty: bool,
        default_chain: DefaultChain,
    ) -> None:
        super().__init__(registry, metrics, rollouts)
        self._registry = registry
        self._reconcile = reconcile
        self._save = save
        self._problems = problems
        self._loading_reason = loading_reason
        self._unready = unready
        self.troubles = troubles
        self._allow_empty = allow_empty
        self._default_chain = default_chain
        self._started = monotonic()
        self._views: dict[frozenset[str], SeenModels] = {}
        self._metrics_texts = Shared(self._write_metrics)
        self.draining = False
        self.opening = ""

    def begin_draining(self) -> None:
        """Report not ready from now on; requests are still answered."""
        self.draining = True

    def seen_by(self, models: frozenset[str] | None) -> ModelReader:
        """What callers may read who may see `models`; None: all of them."""
        if models is None:
            return self
        view = self._views.get(models)
        if view is None:
            if len(self._views) >= MAX_SEEN:
                self._views.clear()
            view = self._views[models] = SeenModels(self, models)
        return view

    def readiness(self) -> Readiness:
        """Ready means: the first load pass is over, a model serves, and none became unavailable.

        And the process does not drain, and nothing is wrong with a device, a thread or the loop.

        A version that failed does not matter while another version of its model is READY.
        """
        if self.draining:
            return Readiness(False, "draining")
        if troubles := self.troubles():
            return Readiness(False, "; ".join(map(str, troubles)))
        if not self._registry.settled:
            return Readiness(False, self._why_loading())
        if reason := self._unready():
            return Readiness(False, reason)
        if unavailable := self._registry.unavailable:
            return Readiness(False, f"{NO_READY_VERSION}: {', '.join(unavailable)}")
        if self._registry.serves_nothing and not self._allow_empty:
            return Readiness(False, _why_nothing_serves(self._registry.serving))
        return Readiness(not self.opening, self.opening)

    def liveness(self) -> Readiness:
        """Live means: nothing is wrong that only a restart mends. The reason names no model."""
        lasting = [trouble.text for trouble in self.troubles() if trouble.lasting]
        return Readiness(not lasting, "; ".join(lasting))

    def _why_loading(self) -> str:
        goes_on = self._registry.loading
        more = ", …" if len(goes_on) > MOST_LISTED else ""
        listed = f": {', '.join(goes_on[:MOST_LISTED])}{more}" if goes_on else ""
        return self._loading_reason() + listed

    def health(self) -> Description:
        """A summary for people and simple checks."""
        catalog = self._registry.catalog
        readiness = self.readiness()
        problems = [*map(str, self._problems()), *describe_failures(catalog)]
        status = "healthy" if readiness.ready and not problems else "degraded"
        if not readiness.ready:
            status = "draining" if self.draining else "unready"
        return {
            "status": status,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "model_loaded": any(model.default is not None for model in catalog.values()),
            "models": self.states(),
            "problems": problems,
            "held_back": describe_held_back(catalog),
            "rolled_back": self._rollouts.rolled_back(catalog),
            "default_providers": {
                "wanted": [link.name for link in self._default_chain.links],
                "reason": self._default_chain.reason,
            },
            "uptime_seconds": round(monotonic() - self._started, 3),
            "version": VERSION,
        }

    async def load(self, name: str) -> None:
        """Load a model that was unloaded, retry versions that failed, and wait until that is done.

        Raises ModelNotFound, or NotReady with the reason where a version could not be loaded.
        """
        self._registry.reload_model(name)
        await self._reconcile()
        await self._registry.loaded(name)
        for entry in self._registry.model(name).versions.values():
            if entry.reason:
                wait = seconds_until_ready([entry], monotonic())
                raise NotReady(f"version {entry.number}: {entry.reason}", retry_after=wait)

    def unload(self, name: str) -> None:
        """Unload a model until `load` or a restart. Requests in flight finish.

        Raises ModelNotFound.
        """
        self._registry.unload_model(name)

    # -- rollouts

    def rollouts(self) -> Description:
        """Every rollout by model."""
        return {name: self._rollouts.describe(name) for name in self._rollouts.live}

    def rollout(self, name: str) -> Description:
        """A model's rollout. Raises NotFound."""
        description = self._rollouts.describe(name)
        if description is None:
            raise NotFound(f"model {quoted(name)} has no rollout")
        return description

    async def roll_back(self, name: str, variant: str) -> Description:
        """Route a variant's traffic to the baseline. Raises NotFound or InvalidInput."""
        self._rollouts.roll_back(name, variant)
        await self._save()
        return self.rollout(name)

    async def clear(self, name: str, variant: str | None = None) -> Description:
        """Clear the decisions about a variant, or about all variants. Raises NotFound."""
        self._rollouts.clear(name, variant)
        await self._save()
        return self.rollout(name)

    def shadow_examples(self, name: str) -> list[Description]:
        """The most recent requests on which the shadow disagreed. Raises NotFound."""
        return self._rollouts.examples(name)

    # -- metrics

    async def metrics_text(self, accept: str) -> tuple[Sequence[bytes], str]:
        """The metrics in the format that an Accept header prefers, in blocks; its content type.

        Who asks while they are written gets the same text.
        """
        content_type = negotiate(accept)
        openmetrics = content_type.startswith("application/openmetrics-text")
        return await self._metrics_texts.get(openmetrics, openmetrics=openmetrics), content_type

    async def _write_metrics(self, *, openmetrics: bool) -> tuple[bytes, ...]:
        process = await asyncio.to_thread(self._metrics.process_families)
        return await in_turns(self._metrics.write(process, openmetrics=openmetrics))


def _why_nothing_serves(wanted: Collection[str]) -> str:
    if not wanted:
        return "there is no model to serve"
    return f"{NO_READY_VERSION}: {quoted_names(wanted)}"


class SeenModels(ModelReader):
    """What callers may read who may see some of the models: nothing tells them of any other.

    whole: The plane that they see a part of.
    models: The names of the models they may see.
    """

    def __init__(self, whole: ControlPlane, models: frozenset[str]) -> None:
        super().__init__(SeenRegistry(whole._registry, models), whole._metrics, whole._rollouts)
        self._whole = whole

    def readiness(self) -> Readiness:
        """As the whole plane's; its reason names only models that may be seen."""
        whole = self._whole.readiness()
        if whole.ready or self._whole.draining:
            return whole
        if troubles := self._whole.troubles():
            return Readiness(False, "; ".join([trouble.text for trouble in troubles]))
        if not self._seen.settled:
            return Readiness(False, "loading models")
        if unavailable := self._seen.unavailable:
            return Readiness(False, f"{NO_READY_VERSION}: {', '.join(unavailable)}")
        return Readiness(False, "not everything that is configured can be served")

    def health(self) -> Description:
        """As the whole plane's, with the models that may be seen and without problems of files."""
        return {
            **self._whole.health(),
            "reason": self.readiness().reason,
            "models": self.states(),
            "problems": [],
            "held_back": describe_held_back(self._seen.catalog),
            "rolled_back": self._rollouts.rolled_back(self._seen.catalog),
        }
