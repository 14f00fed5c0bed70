"""Every metric by name."""

from app.metrics.exposition import negotiate
from app.metrics.histogram import DURATION_BUCKETS, SIZE_BUCKETS, Histogram
from app.metrics.keys import KeyMetrics
from app.metrics.live_counts import VersionCounts
from app.metrics.metrics import Metrics
from app.metrics.remote import RemoteMetrics
from app.metrics.rollouts import RolloutMetrics
from app.metrics.tls import TlsMetrics
from app.metrics.trust import TrustMetrics
from app.metrics.version_metrics import VersionMetrics
from app.metrics.webhooks import WebhookMetrics

__all__ = [
    "DURATION_BUCKETS",
    "SIZE_BUCKETS",
    "Histogram",
    "KeyMetrics",
    "Metrics",
    "RemoteMetrics",
    "RolloutMetrics",
    "TlsMetrics",
    "TrustMetrics",
    "VersionCounts",
    "VersionMetrics",
    "WebhookMetrics",
    "negotiate",
]
