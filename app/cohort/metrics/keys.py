"""Metrics of API keys, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.auth import Caller, KeyRing, KeyWatcher
from cohort.metrics.exposition import parts


class KeyMetrics:
    """Requests by key, and rejected requests.

    keys: The callers, which count their requests.
    watchers: Watchers of the files of keys.
    """

    def __init__(self, keys: KeyRing, watchers: Sequence[KeyWatcher[Any]]) -> None:
        self._keys = keys
        self._watchers = watchers

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families, in parts if there are many keys."""
        for callers in parts(list(self._keys.callers), 100):
            yield from _families_of(callers)
        unauthorized = CounterMetricFamily(
            "api_key_unauthorized", "Requests without a key, or with a wrong one.", labels=("sent",)
        )
        unauthorized.add_metric(("none",), self._keys.missing)
        unauthorized.add_metric(("wrong",), self._keys.wrong)
        valid = GaugeMetricFamily(
            "api_keys_config_valid", "1 if all files of keys are valid, else 0."
        )
        valid.add_metric((), float(all(watcher.valid for watcher in self._watchers)))
        yield from (unauthorized, valid)


def _families_of(callers: Iterable[Caller]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "api_key_requests", "Requests that a key's quota allowed.", labels=("key",)
    )
    refused = CounterMetricFamily(
        "api_key_refused",
        "Requests rejected because a key's quota was used up.",
        labels=("key", "quota"),
    )
    in_flight = GaugeMetricFamily(
        "api_key_inflight_requests",
        "Requests in progress, by key with a concurrency limit.",
        labels=("key",),
    )
    for caller in callers:
        requests.add_metric((caller.name,), caller.requests)
        for quota, count in list(caller.refused.items()):
            refused.add_metric((caller.name, quota), count)
        if caller.concurrency is not None:
            in_flight.add_metric((caller.name,), caller.in_flight)
    yield from (requests, refused, in_flight)
