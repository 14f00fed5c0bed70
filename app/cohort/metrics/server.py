"""Metrics of the server process: health, memory and models folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.metrics.exposition import parts
from cohort.scheduling import FAULTS, Fault
from cohort.session import cpu_limit


class Serving(Protocol):
    """A registry. `serving` has each wanted model, True if it serves."""

    @property
    def serving(self) -> Mapping[str, bool]: ...


class Watched(Protocol):
    """The health of the process: its latest readiness and faults."""

    ready: bool

    @property
    def latest(self) -> Collection[Fault]: ...


class Budget(Protocol):
    """The memory of requests and responses: used and maximum bytes."""

    used: int
    maximum: int


class Folder(Protocol):
    """The models folder: its problems, and the duration of the current scan."""

    @property
    def problems(self) -> Sized: ...

    @property
    def scanning_seconds(self) -> float: ...


class FastPath(Protocol):
    """The fast HTTP protocol, and the number of its responses."""

    answered: int


class LogLines(Protocol):
    """The log, and the number of dropped lines."""

    dropped: int


@dataclass(frozen=True)
class ServerMetrics:
    """Metrics of the process as a whole.

    registry: The models that serve.
    health: The health of the process.
    memory: The memory of requests and responses.
    folder: The models folder.
    fast_path: The fast HTTP protocol.
    log: The log; None if it does not count dropped lines.
    """

    registry: Serving
    health: Watched
    memory: Budget
    folder: Folder
    fast_path: FastPath
    log: LogLines | None

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families, in parts if there are many models."""
        hot = CounterMetricFamily(
            "http_hot_requests", "Responses of the fast HTTP protocol instead of FastAPI."
        )
        hot.add_metric((), self.fast_path.answered)
        lines = CounterMetricFamily(
            "log_lines_dropped", "Log lines dropped because standard error was blocked."
        )
        lines.add_metric((), 0 if self.log is None else self.log.dropped)
        yield from (hot, lines)
        for some in parts(list(self.registry.serving.items()), 100):
            serves = GaugeMetricFamily(
                "model_serves",
                "1 if the model has a version that serves, else 0; no sample if an operator "
                "unloaded it.",
                labels=("model",),
            )
            for model, serving in some:
                serves.add_metric((model,), float(serving))
            yield serves
        unhealthy = GaugeMetricFamily(
            "server_unhealthy", "1 for each fault of the process.", labels=("reason",)
        )
        faults = {fault.kind for fault in self.health.latest}
        for kind in FAULTS:
            unhealthy.add_metric((kind,), float(kind in faults))
        yield unhealthy
        for name, help_text, value in (
            ("server_ready", "1 if the process answers 200 on /health/ready.", self.health.ready),
            ("process_cpu_cores", "Cores that the process may use.", cpu_limit()),
            (
                "memory_held_bytes",
                "Memory of requests and responses.",
                self.memory.used,
            ),
            (
                "memory_budget_bytes",
                "Maximum memory of requests and responses.",
                self.memory.maximum,
            ),
            (
                "models_folder_problems",
                "Problems of the models folder, as listed by /health.",
                len(self.folder.problems),
            ),
            (
                "models_folder_scan_seconds",
                "Duration of the current scan of the models folder; 0: no scan.",
                self.folder.scanning_seconds,
            ),
        ):
            yield GaugeMetricFamily(name, help_text, value=value)
