"""Prometheus metrics."""

from cohort.metrics.caches import CacheMetrics
from cohort.metrics.exposition import negotiate
from cohort.metrics.generation import GenerationMetrics
from cohort.metrics.histogram import DURATION_BUCKETS, SIZE_BUCKETS, Histogram
from cohort.metrics.keys import KeyMetrics
from cohort.metrics.live_counts import VersionCounts
from cohort.metrics.metrics import Collector, Metrics
from cohort.metrics.remote import RemoteMetrics
from cohort.metrics.rollouts import RolloutGauges, RolloutMetrics
from cohort.metrics.sequences import SequenceMetrics
from cohort.metrics.server import LogLines, ServerMetrics
from cohort.metrics.steps import StepMetrics
from cohort.metrics.tls import TlsMetrics
from cohort.metrics.token_times import TokenTimes
from cohort.metrics.trust import TrustMetrics
from cohort.metrics.version_metrics import VersionMetrics
from cohort.metrics.webhooks import WebhookMetrics

__all__ = [
    "DURATION_BUCKETS",
    "SIZE_BUCKETS",
    "CacheMetrics",
    "Collector",
    "GenerationMetrics",
    "Histogram",
    "KeyMetrics",
    "LogLines",
    "Metrics",
    "RemoteMetrics",
    "RolloutGauges",
    "RolloutMetrics",
    "SequenceMetrics",
    "ServerMetrics",
    "StepMetrics",
    "TlsMetrics",
    "TokenTimes",
    "TrustMetrics",
    "VersionCounts",
    "VersionMetrics",
    "WebhookMetrics",
    "negotiate",
]
