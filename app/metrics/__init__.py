"""Every metric by name."""

from app.metrics.histogram import SECONDS, Histogram
from app.metrics.metrics import Metrics, VersionMetrics

__all__ = ["SECONDS", "Histogram", "Metrics", "VersionMetrics"]
