"""Every metric by name."""

from app.metrics.histogram import SECONDS, Histogram
from app.metrics.metrics import Metrics, VersionMetrics
from app.metrics.rollouts import RolloutMetrics

__all__ = ["SECONDS", "Histogram", "Metrics", "RolloutMetrics", "VersionMetrics"]
