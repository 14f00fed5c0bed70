"""Cohort's metrics as Ray's, with the labels deployment, replica and application."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from ray.serve import metrics as ray_metrics

from cohort.metrics import Metrics
from cohort.operating import ControlPlane

INTERVAL_SECONDS = 5.0

PREFIX = "cohort_"


class RayMetrics:
    """Copies all counters, gauges and the sums and counts of histograms to Ray, regularly.

    plane: Has the metrics.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._made: dict[str, Any] = {}
        self._last: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to copy, on the running event loop."""
        self._task = asyncio.create_task(self._repeat())

    async def _repeat(self) -> None:
        while True:
            blocks, _ = await self._plane.metrics_text("text/plain")
            text = b"".join(blocks).decode()
            self.copy(await asyncio.to_thread(_families, text))
            await asyncio.sleep(INTERVAL_SECONDS)

    def copy(self, families: Iterable[Metric]) -> None:
        """Copy these families."""
        for family in families:
            for sample in family.samples:
                name = sample.name
                if name.endswith(("_bucket", "_created")):
                    continue
                counts = name.endswith(("_total", "_sum", "_count"))
                self._set(name, dict(sample.labels), sample.value, family, counts=counts)

    def _set(
        self, name: str, labels: dict[str, str], value: float, family: Metric, *, counts: bool
    ) -> None:
        kind = ray_metrics.Counter if counts else ray_metrics.Gauge
        made = self._made.get(name)
        if made is None:
            known = (family.documentation or name, tuple(labels))
            made = kind(PREFIX + name, description=known[0], tag_keys=known[1])
            self._made[name] = made
        if not counts:
            made.set(value, tags=labels)
            return
        key = name, tuple(sorted(labels.items()))
        more = value - self._last.get(key, 0.0)
        self._last[key] = value
        if more > 0:
            made.inc(more, tags=labels)


def _families(text: str) -> list[Metric]:
    return [*text_string_to_metric_families(text)]


def durations(metrics: Metrics) -> tuple[float, int, float]:
    """Return the seconds in queues, the requests that were in them, and the seconds of runs."""
    queued, requests, busy = 0.0, 0, 0.0
    for version in metrics.versions:
        queued += version.queue.total
        requests += version.queue.count
        busy += version.run.total
    return queued, requests, busy
