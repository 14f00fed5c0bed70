"""Read a server's /metrics."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import PATIENCE


class Scrape:
    """The samples of one scrape."""

    def __init__(self, url: str) -> None:
        text = httpx.get(f"{url}/metrics", timeout=PATIENCE).raise_for_status().text
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of all samples of `name` that carry `labels`, or 0 without any."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The values of `name`, by the value of `label`."""
        return {
            sample.labels[label]: sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }
