"""The metrics of the process as a server: its health, its memory, its models folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.metrics.exposition import parts
from cohort.scheduling import TROUBLES, Trouble
from cohort.session import cpu_limit


class Serving(Protocol):
    """A registry: `serving` is whether each model serves that is wanted."""

    @property
    def serving(self) -> Mapping[str, bool]: ...


class Watched(Protocol):
    """The process's health: whether it was ready a moment ago, and what was wrong then."""

    ready: bool

    @property
    def latest(self) -> Collection[Trouble]: ...


class Budget(Protocol):
    """The bytes that requests and responses hold, and that they may hold."""

    used: int
    maximum: int


class Folder(Protocol):
    """The models folder: its problems, and how long the look at it has taken that goes on."""

    @property
    def problems(self) -> Sized: ...

    @property
    def scanning_seconds(self) -> float: ...


class FastPath(Protocol):
    """The fast HTTP protocol: how many responses it has sent."""

    answered: int


class LogLines(Protocol):
    """The log: how many lines were not written."""

    dropped: int


@dataclass(frozen=True)
class ServerMetrics:
    """Exposes what is so of the process as a whole.

    registry: Which models serve.
    health: Whether the process is ready, and what is wrong with it.
    memory: What requests hold.
    folder: The models folder.
    fast_path: What it has answered.
    log: What it has dropped; None: nobody counts that.
    """

    registry: Serving
    health: Watched
    memory: Budget
    folder: Folder
    fast_path: FastPath
    log: LogLines | None

    def collect(self) -> Iterator[Metric]:
        """The metric families as they are now; of many models, in parts."""
        hot = CounterMetricFamily(
            "http_hot_requests", "Responses of the fast HTTP protocol, not of FastAPI."
        )
        hot.add_metric((), self.fast_path.answered)
        lines = CounterMetricFamily(
            "log_lines_dropped", "Log lines that were not written: standard error took no more."
        )
        lines.add_metric((), 0 if self.log is None else self.log.dropped)
        yield from (hot, lines)
        for some in parts(list(self.registry.serving.items()), 100):
            serves = GaugeMetricFamily(
                "model_serves",
                "1 if the model has a version that serves, else 0; none where an operator unloaded "
                "it.",
                labels=("model",),
            )
            for model, serving in some:
                serves.add_metric((model,), float(serving))
            yield serves
        unhealthy = GaugeMetricFamily(
            "server_unhealthy", "1 for each reason why the process is not well.", labels=("reason",)
        )
        troubles = {trouble.kind for trouble in self.health.latest}
        for kind in TROUBLES:
            unhealthy.add_metric((kind,), float(kind in troubles))
        yield unhealthy
        for name, help_text, value in (
            ("server_ready", "1 if the process answers 200 on /health/ready.", self.health.ready),
            ("process_cpu_cores", "Cores that the process may keep busy.", cpu_limit()),
            (
                "memory_held_bytes",
                "Memory that requests and responses hold.",
                self.memory.used,
            ),
            ("memory_budget_bytes", "Memory that they may hold.", self.memory.maximum),
            (
                "models_folder_problems",
                "What is wrong in the models folder, as /health lists it.",
                len(self.folder.problems),
            ),
            (
                "models_folder_scan_seconds",
                "How long the look at the models folder has taken that goes on; 0: none does.",
                self.folder.scanning_seconds,
            ),
        ):
            yield GaugeMetricFamily(name, help_text, value=value)
