"""What an operator can ask for: health, what is loaded and how it fares, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version as distribution_version
from time import monotonic
from typing import Any

from app.metrics import Metrics
from app.registry import Catalog, ModelEntry, Registry, State, VersionEntry
from app.tensors import Arrays, TensorSpec

Description = dict[str, Any]
"""Plain values, ready to be written as JSON."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process wants traffic, and if not, why."""

    ready: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A READY version as callers see it. `example` is inputs it takes, None where none are known.

    `default` is whether it answers where no version is asked for.
    """

    model: str
    version: str
    default: bool
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    example: Arrays | None


class ControlPlane:
    """Operators' way in. `draining` is set once, when the process starts to stop."""

    def __init__(self, registry: Registry, metrics: Metrics) -> None:
        self._registry = registry
        self._metrics = metrics
        self._started = monotonic()
        self._served: tuple[Catalog, tuple[Served, ...]] | None = None
        self.draining = False
        self.problems: Callable[[], Sequence[object]] = list  # what is wrong on disk, for people

    def readiness(self) -> Readiness:
        """Ready: the first load pass is over, nothing has gone dark, and it is not draining.

        A version that failed takes no replica out of service while its model is served otherwise.
        """
        if self.draining:
            return Readiness(False, "draining")
        if not self._registry.settled:
            return Readiness(False, "loading models")
        if dark := self._registry.dark:
            return Readiness(False, f"no version is ready any more of: {', '.join(dark)}")
        return Readiness(True)

    def health(self) -> Description:
        """A summary for people and simple checks."""
        catalog = self._registry.catalog
        readiness = self.readiness()
        troubled = any(
            one.reason for model in catalog.values() for one in model.versions.values()
        ) or bool(self.problems())
        status = "healthy" if readiness.ready and not troubled else "degraded"
        if not readiness.ready:
            status = "draining" if self.draining else "unready"
        return {
            "status": status,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "model_loaded": any(model.default is not None for model in catalog.values()),
            "models": {name: _states(model) for name, model in catalog.items()},
            "problems": [str(problem) for problem in self.problems()],
            "uptime_seconds": round(monotonic() - self._started, 3),
            "version": distribution_version("cohort"),
        }

    def models(self) -> Description:
        """Every model with its versions' states."""
        return {"models": [_model(entry) for entry in self._registry.catalog.values()]}

    def model(self, name: str) -> Description:
        """One model with its versions in full. Raises ModelNotFound."""
        entry = self._registry.model(name)
        return {**_model(entry), "versions": [_version(one) for one in entry.versions.values()]}

    def version(self, name: str, version: str) -> Description:
        """One version in full. Raises ModelNotFound or VersionNotFound."""
        return {"model": name, **_version(self._registry.version(name, version))}

    def served(self) -> tuple[Served, ...]:
        """Every READY version; the same tuple until something changes."""
        catalog = self._registry.catalog
        if self._served is None or self._served[0] is not catalog:
            self._served = catalog, tuple(_served(catalog))
        return self._served[1]

    def metrics_text(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format asked for, and its content type."""
        return self._metrics.text(accept)


def _served(catalog: Catalog) -> Iterator[Served]:
    for name, model in catalog.items():
        for entry in model.versions.values():
            if entry.state is State.READY and (loaded := entry.loaded) is not None:
                yield Served(
                    name,
                    str(entry.number),
                    entry is model.default,
                    loaded.session.inputs,
                    loaded.session.outputs,
                    loaded.example,
                )


def _states(model: ModelEntry) -> dict[str, str]:
    return {str(number): entry.state.value for number, entry in model.versions.items()}


def _model(entry: ModelEntry) -> Description:
    default = entry.default
    return {
        "name": entry.name,
        "default_version": None if default is None else str(default.number),
        "versions": [
            {"version": str(one.number), "state": one.state.value, "reason": one.reason}
            for one in entry.versions.values()
        ],
    }


def _version(entry: VersionEntry) -> Description:
    described: Description = {
        "version": str(entry.number),
        "state": entry.state.value,
        "reason": entry.reason,
    }
    loaded = entry.loaded
    if loaded is None:
        return described
    session, policy = loaded.session, loaded.batcher.policy
    metadata, placement = session.metadata, session.placement
    described |= {
        "inputs": _specs(session.inputs),
        "outputs": _specs(session.outputs),
        "metadata": {
            "producer": metadata.producer,
            "producer_version": metadata.producer_version,
            "description": metadata.description,
            "domain": metadata.domain,
            "graph_name": metadata.graph_name,
            "ir_version": metadata.ir_version,
            "opsets": dict(metadata.opsets),
            "properties": dict(metadata.properties),
        },
        "providers": {
            "wanted": list(placement.wanted),
            "active": placement.active,
            "fallbacks": [
                {"provider": one.provider, "reason": one.reason} for one in placement.fallbacks
            ],
            "nodes": dict(placement.nodes),
        },
        "batching": {
            "on": policy.batches,
            "reason": entry.batching_off,
            "max_batch_size": policy.max_batch_size,
            "max_queue_size": policy.max_queue_size,
            "max_queue_delay_ms": policy.max_queue_delay_ms,
        },
        "profile": {
            "seconds_by_rows": {str(rows): taken for rows, taken in loaded.profile.seconds.items()},
        },
        "timeout_ms": round(loaded.timeout * 1000, 3),
    }
    return described


def _specs(specs: Sequence[TensorSpec]) -> list[Description]:
    return [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": None if spec.shape is None else list(spec.shape),
            "carried": spec.carried,
        }
        for spec in specs
    ]
