"""What an operator can ask for: health, what is loaded and how it fares, metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version as distribution_version
from time import monotonic
from typing import Any

from app.errors import NotReady
from app.metrics import Metrics, VersionMetrics
from app.registry import UNLOADED, Catalog, ModelEntry, Registry, State, VersionEntry
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
        self.reconcile: Callable[[], Awaitable[None]] = _nothing  # make it what is on disk, now

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
            one.reason not in {"", UNLOADED}
            for model in catalog.values()
            for one in model.versions.values()
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

    def statistics(self, name: str | None = None, version: str | None = None) -> list[Description]:
        """What READY versions have done, in the words of Triton's statistics extension.

        Of all models, of one, or of one version. Raises ModelNotFound, VersionNotFound or NotReady.
        """
        if name is None:
            models = list(self._registry.catalog.values())
        else:
            self._registry.find(name, version)
            models = [self._registry.model(name)]
        return [
            _statistics(model.name, str(number), self._metrics.version(model.name, str(number)))
            for model in models
            for number, entry in model.versions.items()
            if entry.state is State.READY and version in {None, str(number)}
        ]

    async def load(self, name: str) -> None:
        """Bring a model back that was unloaded, try again what failed, and wait for the outcome.

        Raises ModelNotFound, or NotReady with the reason where one of its versions is not served.
        """
        self._registry.bring_back(name)
        await self.reconcile()
        for entry in self._registry.model(name).versions.values():
            if entry.reason:
                raise NotReady(f"version {entry.number}: {entry.reason}")

    def unload(self, name: str) -> None:
        """Take a model out of service until `load` or a restart; what is in flight finishes.

        Raises ModelNotFound.
        """
        self._registry.take_out(name)

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
            "padding_off": entry.padding_off,
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


def _statistics(name: str, version: str, counts: VersionMetrics) -> Description:
    """https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md

    The runtime takes and gives numpy's own memory, so that input and output take no time to count.
    """
    succeeded = sum(count for (_, code), count in counts.answered.items() if code == "OK")
    failed = sum(counts.answered.values()) - succeeded
    seconds = sum(durations.total for durations in counts.durations.values())
    none = _duration(0, 0.0)
    return {
        "name": name,
        "version": version,
        "last_inference": round(counts.last_run * 1000),
        "inference_count": round(counts.rows.total),
        "execution_count": counts.run.count,
        "inference_stats": {
            "success": _duration(succeeded, seconds - counts.failed_seconds),
            "fail": _duration(failed, counts.failed_seconds),
            "queue": _duration(counts.queue.count, counts.queue.total),
            "compute_input": none,
            "compute_infer": _duration(counts.run.count, counts.run.total),
            "compute_output": none,
            "cache_hit": none,
            "cache_miss": none,
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": none,
                "compute_infer": _duration(count, seconds),
                "compute_output": none,
            }
            for rows, (count, seconds) in sorted(counts.runs_by_rows.items())
        ],
    }


def _duration(count: int, seconds: float) -> Description:
    return {"count": count, "ns": max(0, round(seconds * 1e9))}


async def _nothing() -> None:
    """Until `main` says how."""
