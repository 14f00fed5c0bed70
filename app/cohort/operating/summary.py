"""The summary of a process's health, for people and simple checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version as distribution_version
from time import monotonic

from cohort.operating.description import (
    Description,
    describe_failures,
    describe_held_back,
    describe_mixed,
)
from cohort.operating.readiness import Lifecycle, Readiness
from cohort.operating.reading import ModelReader
from cohort.registry import Registry
from cohort.rollouts import Rollouts
from cohort.session import DefaultChain

VERSION = distribution_version("cohort")  # read once, because it is in a file


class HealthSummary:
    """Writes the summary.

    registry, rollouts, lifecycle: The sources of the summary.
    file_problems: Returns the problems of the operator's files, as messages.
    default_chain: The providers of models whose config names no providers.
    """

    def __init__(
        self,
        registry: Registry,
        rollouts: Rollouts,
        lifecycle: Lifecycle,
        *,
        file_problems: Callable[[], Sequence[object]],
        default_chain: DefaultChain,
    ) -> None:
        self._registry = registry
        self._rollouts = rollouts
        self._lifecycle = lifecycle
        self._file_problems = file_problems
        self._default_chain = default_chain
        self._started = monotonic()

    def problems(self) -> list[str]:
        """Return the problems of files and models."""
        catalog = self._registry.catalog
        return [
            *map(str, self._file_problems()),
            *describe_failures(catalog),
            *describe_mixed(catalog),
        ]

    def describe(self, view: ModelReader, readiness: Readiness) -> Description:
        """Return the summary with the models in `view`. Problems need a view of all models."""
        problems = self.problems()
        status = "healthy" if readiness.ready and not problems else "degraded"
        if not readiness.ready:
            status = "draining" if self._lifecycle.draining else "unready"
        visible, whole = view.registry.catalog, self._registry.catalog
        return {
            "status": status,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "model_loaded": any(model.default is not None for model in whole.values()),
            "models": view.states(),
            "problems": problems if view.sees_all else [],
            "held_back": describe_held_back(visible),
            "rolled_back": self._rollouts.rolled_back(visible),
            "default_providers": {
                "wanted": [link.name for link in self._default_chain.links],
                "reason": self._default_chain.reason,
            },
            "uptime_seconds": round(monotonic() - self._started, 3),
            "version": VERSION,
        }
