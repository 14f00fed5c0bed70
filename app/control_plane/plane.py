"""The operator's way in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version as distribution_version
from time import monotonic

from app.control_plane.description import (
    Description,
    ServedModel,
    describe_model,
    describe_version,
    served_by,
    states,
)
from app.errors import NotFound, NotReady, quoted
from app.metrics import Metrics, VersionMetrics
from app.registry import UNLOADED, Catalog, Registry, State
from app.rollouts import Rollouts


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process wants traffic, and if not, why."""

    ready: bool
    reason: str = ""


class ControlPlane:
    """Operators' way in. `draining` is set once, when the process starts to stop.

    registry: Holds the catalog of loaded versions.
    metrics: What was counted.
    rollouts: The rollouts of all models.
    reconcile: Loads and unloads until the registry has what is on disk now.
    save: Writes what was decided about rollouts to the state folder, now.
    problems: What is wrong with the operator's files, in sentences.
    waits_for: Why the first models are not loaded yet.
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
        waits_for: Callable[[], str],
    ) -> None:
        self._registry = registry
        self._metrics = metrics
        self._rollouts = rollouts
        self._reconcile = reconcile
        self._save = save
        self._problems = problems
        self._waits_for = waits_for
        self._started = monotonic()
        self._served: tuple[Catalog, tuple[ServedModel, ...]] | None = None
        self.draining = False

    def begin_draining(self) -> None:
        """Want no more traffic; what still comes is answered."""
        self.draining = True

    def readiness(self) -> Readiness:
        """Ready: the first load pass is over, nothing has gone unavailable, and it is not draining.

        A version that failed takes no replica out of service while its model is served otherwise.
        """
        if self.draining:
            return Readiness(False, "draining")
        if not self._registry.settled:
            return Readiness(False, self._waits_for())
        if unavailable := self._registry.unavailable:
            return Readiness(False, f"no version is ready any more of: {', '.join(unavailable)}")
        return Readiness(True)

    def health(self) -> Description:
        """A summary for people and simple checks."""
        catalog = self._registry.catalog
        readiness = self.readiness()
        troubled = any(
            one.reason not in {"", UNLOADED}
            for model in catalog.values()
            for one in model.versions.values()
        ) or bool(self._problems())
        status = "healthy" if readiness.ready and not troubled else "degraded"
        if not readiness.ready:
            status = "draining" if self.draining else "unready"
        return {
            "status": status,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "model_loaded": any(model.default is not None for model in catalog.values()),
            "models": {name: states(model) for name, model in catalog.items()},
            "problems": [str(problem) for problem in self._problems()],
            "uptime_seconds": round(monotonic() - self._started, 3),
            "version": distribution_version("cohort"),
        }

    def models(self) -> Description:
        """Every model with its versions' states."""
        return {"models": [describe_model(entry) for entry in self._registry.catalog.values()]}

    def model(self, name: str) -> Description:
        """One model with its versions in full, and its rollout if any. Raises ModelNotFound."""
        entry = self._registry.model(name)
        described = describe_model(entry)
        described["versions"] = [describe_version(one) for one in entry.versions.values()]
        rollout = self._rollouts.describe(name)
        return described if rollout is None else {**described, "rollout": rollout}

    def version(self, name: str, version: str) -> Description:
        """One version in full. Raises ModelNotFound or VersionNotFound."""
        return {"model": name, **describe_version(self._registry.version(name, version))}

    def served(self) -> tuple[ServedModel, ...]:
        """Every READY version; the same tuple until something changes."""
        catalog = self._registry.catalog
        if self._served is None or self._served[0] is not catalog:
            self._served = catalog, tuple(served_by(catalog))
        return self._served[1]

    def ready(self, name: str, version: str | None = None) -> str:
        """The version that would answer now. Raises ModelNotFound, VersionNotFound or NotReady."""
        return str(self._registry.find(name, version).number)

    def index(self) -> list[Description]:
        """Every version of every model: its name, state and the reason for that."""
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
        """What READY versions have done, each with its model and version.

        Of all models, of one, or of one version. Raises ModelNotFound, VersionNotFound or NotReady.
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
        """Bring a model back that was unloaded, try again what failed, and wait for the outcome.

        Raises ModelNotFound, or NotReady with the reason where one of its versions is not served.
        """
        self._registry.reload_model(name)
        await self._reconcile()
        for entry in self._registry.model(name).versions.values():
            if entry.reason:
                raise NotReady(f"version {entry.number}: {entry.reason}")

    def unload(self, name: str) -> None:
        """Take a model out of service until `load` or a restart; what is in flight finishes.

        Raises ModelNotFound.
        """
        self._registry.unload_model(name)

    # -- rollouts

    def labelled(self, name: str, label: str) -> str:
        """The version of a variant. Raises ModelNotFound or NotFound."""
        self._registry.model(name)
        return str(self._rollouts.version_of(name, label))

    def rollouts(self) -> Description:
        """Every rollout by model."""
        return {name: self._rollouts.describe(name) for name in self._rollouts.live}

    def rollout(self, name: str) -> Description:
        """A model's rollout. Raises NotFound."""
        described = self._rollouts.describe(name)
        if described is None:
            raise _no_rollout(name)
        return described

    async def roll_back(self, name: str, variant: str) -> Description:
        """Give a variant's callers to the baseline. Raises NotFound or InvalidInput."""
        self._rollouts.roll_back(name, variant)
        await self._save()
        return self.rollout(name)

    async def clear(self, name: str, variant: str | None = None) -> Description:
        """End what was decided about a variant, or about all of a model. Raises NotFound."""
        self._rollouts.clear(name, variant)
        await self._save()
        return self.rollout(name)

    def shadow_examples(self, name: str) -> list[Description]:
        """The last requests that the shadow answered differently. Raises NotFound."""
        return self._rollouts.examples(name)

    # -- metrics

    def metrics_text(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format asked for, and its content type."""
        return self._metrics.text(accept)


def _no_rollout(name: str) -> NotFound:
    return NotFound(f"model {quoted(name)} has no rollout")
