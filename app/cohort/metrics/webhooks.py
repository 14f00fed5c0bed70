"""Metrics of webhooks, by the receivers' hosts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.notifications.webhooks import Webhooks


class WebhookMetrics:
    """Outcomes of notifications.

    webhooks: The webhooks, which count them.
    """

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families."""
        counts = CounterMetricFamily(
            "webhook_notifications",
            "Notifications by outcome: delivered, failed (rejected or too old), or dropped (too "
            "many).",
            labels=("receiver", "outcome"),
        )
        for labels, count in list(self._webhooks.outcomes.items()):
            counts.add_metric(labels, count)
        waiting = GaugeMetricFamily(
            "webhook_waiting", "Notifications that wait for a receiver.", labels=("receiver",)
        )
        for receiver, count in self._webhooks.waiting.items():
            waiting.add_metric((receiver,), count)
        yield from (counts, waiting)
