"""The metrics of the keys of which one must have signed a version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from cohort.auth import KeyWatcher
from cohort.repository import Trust


class TrustMetrics:
    """Exposes how many keys are trusted, and whether they can be read.

    trust: The keys as they are now.
    watcher: Follows their file.
    """

    def __init__(self, trust: Trust, watcher: KeyWatcher[Any]) -> None:
        self._trust = trust
        self._watcher = watcher

    def collect(self) -> Iterator[Metric]:
        """The metric families as they are now, for prometheus_client."""
        count = GaugeMetricFamily("trusted_keys", "Keys of which one must have signed a version.")
        count.add_metric((), len(self._trust.keys or ()))
        valid = GaugeMetricFamily(
            "trusted_keys_config_valid", "1 if all files of trusted keys are valid, else 0."
        )
        valid.add_metric((), float(self._watcher.valid))
        yield from (count, valid)
