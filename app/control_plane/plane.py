"""The control plane: the interface for operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version as distribution_version
from time import monotonic

from app.control_plane.description import (
    Description,
    ServedModel,
    describe_model,
    describe_states,
    describe_version,
    list_served,
)
from app.errors import NotFound, NotReady, quoted
from app.metrics import Metrics, VersionMetrics
from app.registry import UNLOADED, Catalog, Registry, State
from app.rollouts import Rollouts


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process should receive traffic, and the reason if it should not."""

    ready: bool
    reason: str = ""


class ControlPlane:
    """What operators may read and do, for all adapters.

    draining: Whether the process has begun to stop; never reset.

    registry: Holds the catalog of loaded versions.
    metrics: The metrics of the process.
    rollouts: The rollouts of all models.
    reconcile: Loads and unloads until the registry matches the models folder.
    save: Writes the decisions about rollouts to the state folder.
    problems: Returns the problems of the operator's files, as messages.
    loading_reason: Returns the reason why the first models are not loaded yet.
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
    ) -> None:
        self._registry = registry
        self._metrics = metrics
        self._rollouts = rollouts
        self._reconcile = reconcile
        self._save = save
        self._problems = problems
        self._loading_reason = loading_reason
        self._started = monotonic()
        self._served: tuple[Catalog, tuple[ServedModel, ...]] | None = None
        self.draining = False

    def begin_draining(self) -> None:
        """Report not ready from now on; requests are still answered."""
        self.draining = True

    def readiness(self) -> Readiness:
        """Ready means: the first load pass is over, no model became unavailable, and no draining.

        A version that failed does not matter while another version of its model is READY.
        """
        if self.draining:
            return Readiness(False, "draining")
        if not self._registry.settled:
            return Readiness(False, self._loading_reason())
        if unavailable := self._registry.unavailable:
            return Readiness(False, f"models without a ready version: {', '.join(unavailable)}")
        return Readiness(True)

    def health(self) -> Description:
        """A summary for people and simple checks."""
        catalog = self._registry.catalog
        readiness = self.readiness()
        has_problems = any(
            one.reason not in {"", UNLOADED}
            for model in catalog.values()
            for one in model.versions.values()
        ) or bool(self._problems())
        status = "healthy" if readiness.ready and not has_problems else "degraded"
        if not readiness.ready:
            status = "draining" if self.draining else "unready"
        return {
            "status": status,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "model_loaded": any(model.default is not None for model in catalog.values()),
            "models": {name: describe_states(model) for name, model in catalog.items()},
            "problems": [str(problem) for problem in self._problems()],
            "uptime_seconds": round(monotonic() - self._started, 3),
            "version": distribution_version("cohort"),
        }

    def models(self) -> Description:
        """Every model with the states of its versions."""
        return {"models": [describe_model(entry) for entry in self._registry.catalog.values()]}

    def model(self, name: str) -> Description:
        """One model with its versions in full, and its rollout if any. Raises ModelNotFound."""
        entry = self._registry.model(name)
        description = describe_model(entry)
        description["versions"] = [describe_version(one) for one in entry.versions.values()]
        rollout = self._rollouts.describe(name)
        return description if rollout is None else {**description, "rollout": rollout}

    def version(self, name: str, version: str) -> Description:
        """One version in full. Raises ModelNotFound or VersionNotFound."""
        return {"model": name, **describe_version(self._registry.version(name, version))}

    def served(self) -> tuple[ServedModel, ...]:
        """Every READY version; the same tuple until the catalog changes."""
        catalog = self._registry.catalog
        if self._served is None or self._served[0] is not catalog:
            self._served = catalog, tuple(list_served(catalog))
        return self._served[1]

    def ready(self, name: str, version: str | None = None) -> str:
        """The version that would answer. Raises ModelNotFound, VersionNotFound or NotReady."""
        return str(self._registry.find(name, version).number)

    def index(self) -> list[Description]:
        """Every version of every model: its name, state, and the reason of the state."""
        return [
            {
                "name": model.name,
                "version": str(entry.number),
                "state": entry.state.value,
                "reason": entry.reason,
            }
            for model in self._registry.catalog.values()
            for entry in model.versions.values()
        ]

    def usage(
        self, name: str | None = None, version: str | None = None
    ) -> list[tuple[str, str, VersionMetrics]]:
        """The metrics of READY versions, each with its model and version.

        name: The model; default None: all models.
        version: The version; default None: all READY versions.

        Raises ModelNotFound, VersionNotFound or NotReady.
        """
        if name is None:
            models = list(self._registry.catalog.values())
        else:
            self._registry.find(name, version)
            models = [self._registry.model(name)]
        return [
            (model.name, str(number), self._metrics.version(model.name, str(number)))
            for model in models
            for number, entry in model.versions.items()
            if entry.state is State.READY and version in {None, str(number)}
        ]

    async def load(self, name: str) -> None:
        """Load a model that was unloaded, retry versions that failed, and wait until that is done.

        Raises ModelNotFound, or NotReady with the reason where a version could not be loaded.
        """
        self._registry.reload_model(name)
        await self._reconcile()
        for entry in self._registry.model(name).versions.values():
            if entry.reason:
                raise NotReady(f"version {entry.number}: {entry.reason}")

    def unload(self, name: str) -> None:
        """Unload a model until `load` or a restart. Requests in flight finish.

        Raises ModelNotFound.
        """
        self._registry.unload_model(name)

    # -- rollouts

    def version_for_label(self, name: str, label: str) -> str:
        """The version of the variant named `label`. Raises ModelNotFound or NotFound."""
        self._registry.model(name)
        return str(self._rollouts.version_of(name, label))

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

    def metrics_text(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format that an Accept header prefers, and its content type."""
        return self._metrics.text(accept)
