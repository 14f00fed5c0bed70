"""Metrics of the trusted keys, which sign versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from cohort.auth import KeyWatcher
from cohort.repository import Trust


class TrustMetrics:
    """The number of trusted keys, and the validity of their files.

    trust: The current keys.
    watcher: The watcher of their files.
    """

    def __init__(self, trust: Trust, watcher: KeyWatcher[Any]) -> None:
        self._trust = trust
        self._watcher = watcher

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families."""
        count = GaugeMetricFamily(
            "trusted_keys", "Number of trusted keys; each version needs a signature by one."
        )
        count.add_metric((), len(self._trust.keys or ()))
        valid = GaugeMetricFamily(
            "trusted_keys_config_valid", "1 if all files of trusted keys are valid, else 0."
        )
        valid.add_metric((), float(self._watcher.valid))
        yield from (count, valid)
