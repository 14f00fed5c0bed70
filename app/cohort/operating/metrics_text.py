"""The metrics of the process as a scrape is given them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cohort.metrics import Metrics, negotiate
from cohort.operating.shared_work import Shared, in_turns
from cohort.registry import Registry


class MetricsText:
    """Writes the metrics. Who asks while they are written is given the same text."""

    def __init__(self, metrics: Metrics, registry: Registry) -> None:
        self._metrics, self._registry = metrics, registry
        self._texts = Shared(self._write)

    async def get(self, accept: str) -> tuple[Sequence[bytes], str]:
        """The text in the format that an Accept header prefers, in blocks; its content type."""
        content_type = negotiate(accept)
        openmetrics = content_type.startswith("application/openmetrics-text")
        return await self._texts.get(openmetrics, openmetrics=openmetrics), content_type

    async def _write(self, *, openmetrics: bool) -> tuple[bytes, ...]:
        process = await asyncio.to_thread(self._metrics.process_families)
        models = list(self._registry.catalog.values())
        return await in_turns(self._metrics.write(models, process, openmetrics=openmetrics))
