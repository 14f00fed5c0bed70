"""The metrics of the process, as text for a scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cohort.metrics import Metrics, negotiate
from cohort.operating.shared_work import Shared, in_turns
from cohort.registry import Registry


class MetricsText:
    """Writes the metrics. Concurrent scrapes share the same text."""

    def __init__(self, metrics: Metrics, registry: Registry) -> None:
        self._metrics, self._registry = metrics, registry
        self._texts = Shared(self._write)

    async def get(self, accept: str) -> tuple[Sequence[bytes], str]:
        """Return the text in blocks, in the format that an Accept header prefers, and its type."""
        content_type = negotiate(accept)
        openmetrics = content_type.startswith("application/openmetrics-text")
        return await self._texts.get(openmetrics, openmetrics=openmetrics), content_type

    async def _write(self, *, openmetrics: bool) -> tuple[bytes, ...]:
        process = await asyncio.to_thread(self._metrics.process_families)
        models = list(self._registry.catalog.values())
        return await in_turns(self._metrics.write(models, process, openmetrics=openmetrics))
