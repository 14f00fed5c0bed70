"""The metrics of a remote repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.remote import MirrorStatus


class RemoteMetrics:
    """Exposes how the models folder is kept in step with a remote repository.

    status: Returns how that goes; called at each scrape.
    """

    def __init__(self, status: Callable[[], MirrorStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """The metric families as they are now, for prometheus_client."""
        status = self._status()
        reachable = GaugeMetricFamily(
            "remote_repository_up", "1 if the last look at the remote repository succeeded, else 0."
        )
        reachable.add_metric(
            (), float(bool(status.looked or status.follows) and not status.trouble)
        )
        looked = GaugeMetricFamily(
            "remote_repository_last_success_timestamp_seconds",
            "When a look at the remote repository last succeeded, since 1970; 0: never.",
        )
        looked.add_metric((), status.looked)
        problems = GaugeMetricFamily(
            "remote_repository_problems", "What is wrong there, as /health lists it."
        )
        problems.add_metric((), float(len(status.problems)))
        fetched = CounterMetricFamily(
            "remote_repository_fetched_bytes", "Bytes of models that were fetched."
        )
        fetched.add_metric((), status.fetched_bytes)
        yield from (reachable, looked, problems, fetched)
