"""Metrics of a remote repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.remote import MirrorStatus


class RemoteMetrics:
    """The state of the mirror of a remote repository.

    status: Returns the state; called at each scrape.
    """

    def __init__(self, status: Callable[[], MirrorStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families."""
        status = self._status()
        reachable = GaugeMetricFamily(
            "remote_repository_up",
            "1 if the last sync with the remote repository succeeded, else 0.",
        )
        reachable.add_metric(
            (), float(bool(status.synced or status.follows) and not status.failure)
        )
        synced = GaugeMetricFamily(
            "remote_repository_last_success_timestamp_seconds",
            "Time of the last successful sync, in seconds since 1970; 0: never.",
        )
        synced.add_metric((), status.synced)
        problems = GaugeMetricFamily(
            "remote_repository_problems", "Problems of the remote repository, as listed by /health."
        )
        problems.add_metric((), float(len(status.problems)))
        fetched = CounterMetricFamily("remote_repository_fetched_bytes", "Bytes of fetched models.")
        fetched.add_metric((), status.fetched_bytes)
        yield from (reachable, synced, problems, fetched)
