"""Metrics of the server's certificate and of handshakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.connections.tls import TlsWatcher


class TlsMetrics:
    """The expiry of the certificate, and failed handshakes.

    Args:
        tls: The certificates in use.
        failed: Failed handshakes over HTTP by kind; read at each scrape.
    """

    def __init__(self, tls: TlsWatcher, failed: Mapping[str, int]) -> None:
        self._tls = tls
        self._failed = failed

    def collect(self) -> Iterator[Metric]:
        expiry = GaugeMetricFamily(
            "tls_certificate_expiry_timestamp_seconds",
            "When the server's certificate expires, in seconds since 1970.",
        )
        expiry.add_metric((), self._tls.current.expires.timestamp())
        valid = GaugeMetricFamily(
            "tls_config_valid", "1 if the files of the certificates are valid, else 0."
        )
        valid.add_metric((), float(self._tls.valid))
        failed = CounterMetricFamily(
            "tls_handshake_failures", "Failed TLS handshakes over HTTP.", labels=("reason",)
        )
        for reason, count in list(self._failed.items()):
            failed.add_metric((reason,), count)
        yield from (expiry, valid, failed)
