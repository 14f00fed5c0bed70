"""What several dashboards ask for."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.grafana.board import Query, Variable

REPLICA = Variable("instance", "Replica", 'up{job="cohort"}', "instance", many=True)
ON_REPLICAS = 'instance=~"$instance"'

CHOSEN_MODEL = Variable("model", "Model", "model_state", "model")
OF_MODEL = f'model="$model",{ON_REPLICAS}'


def rate(metric: str, labels: str, *, by: str = "") -> str:
    """How many a second, over all replicas chosen."""
    return _sum(f"rate({metric}{{{labels}}}[$__rate_interval])", by)


def counted(metric: str, labels: str, *, by: str = "") -> str:
    """How many in the time the reader looks at."""
    return _sum(f"increase({metric}{{{labels}}}[$__range])", by)


def mean(metric: str, labels: str, *, by: str = "") -> str:
    """Of a histogram."""
    return f"{rate(f'{metric}_sum', labels, by=by)} / {rate(f'{metric}_count', labels, by=by)}"


def quantile(share: float, metric: str, labels: str, *, by: str = "") -> str:
    """Of a histogram."""
    buckets = rate(f"{metric}_bucket", labels, by=f"{by}, le" if by else "le")
    return f"histogram_quantile({share:g}, {buckets})"


def quantiles(metric: str, labels: str, *, by: str = "", legend: str = "") -> Iterator[Query]:
    """The median, and what one in twenty and one in a hundred exceeds."""
    for share in (0.5, 0.95, 0.99):
        name = f"{legend} p{share * 100:g}".strip()
        yield Query(quantile(share, metric, labels, by=by), name)


def _sum(expression: str, by: str) -> str:
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"
