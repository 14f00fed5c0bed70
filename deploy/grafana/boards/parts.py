"""Hold the variables, links and queries that several dashboards share."""

from __future__ import annotations

from deploy.grafana.board import Choice, Event, Link, Variable

REPLICA = Variable("instance", "Replica", 'up{job="cohort"}', "instance", many=True)
ON_REPLICAS = 'instance=~"$instance"'

CHOSEN_MODEL = Variable("model", "Model", "model_state", "model")
OF_MODEL = f'model="$model",{ON_REPLICAS}'


PERCENTILE = Choice(
    "quantile",
    "Percentile",
    {"p50": "0.5", "p90": "0.9", "p95": "0.95", "p99": "0.99", "p99.9": "0.999"},
    "p95",
)

TO_MODEL = Link(
    "Cohort: model", "/d/cohort-model?${__url_time_range}&var-model=${__field.labels.model}"
)
TO_ROLLOUT = Link("Cohort: rollout", "/d/cohort-rollout?${__url_time_range}&var-model=$model")


def events(labels: str) -> list[Event]:
    """Return the starts of replicas, and the events of the models that `labels` select."""
    return [
        Event(
            "Started",
            f'process_start_time_seconds{{job="cohort",{ON_REPLICAS}}} * 1000',
            "{{instance}}",
            "blue",
            at=True,
        ),
        Event(
            "Loaded",
            "sum by (model, version) "
            f"({_new_or_changed('model_load_duration_seconds_count', labels)})",
            "{{model}} {{version}}",
            "green",
        ),
        Event(
            "Weights changed",
            f"sum by (model, variant) ({_new_or_changed('rollout_weight', labels)})",
            "{{model}} {{variant}}",
            "orange",
        ),
        Event(
            "Rolled back",
            "sum by (model, version, variant, reason) "
            f"({_new_or_changed('rollout_rollbacks_total', labels)})",
            "{{model}} {{version}} {{variant}}: {{reason}}",
            "red",
        ),
    ]


def _new_or_changed(metric: str, labels: str) -> str:
    """Select series that changed or appeared: a counter's first event is its first value."""
    of = f"{metric}{{{labels}}}"
    return f"changes({of}[$__rate_interval]) > 0 or ({of} unless {of} offset $__rate_interval)"


def rate(metric: str, labels: str, *, by: str = "") -> str:
    """Return the query of a rate per second, over all chosen replicas."""
    return _sum(f"rate({metric}{{{labels}}}[$__rate_interval])", by)


def counted(metric: str, labels: str, *, by: str = "") -> str:
    """Return the query of a count in the time shown."""
    return _sum(f"increase({metric}{{{labels}}}[$__range])", by)


def mean(metric: str, labels: str, *, by: str = "") -> str:
    """Return the query of a histogram's mean."""
    return f"{rate(f'{metric}_sum', labels, by=by)} / {rate(f'{metric}_count', labels, by=by)}"


def quantile(metric: str, labels: str, *, by: str = "", share: str = "$quantile") -> str:
    """Return the query of a histogram's quantile: the chosen one, or `share`."""
    buckets = rate(f"{metric}_bucket", labels, by=f"{by}, le" if by else "le")
    return f"histogram_quantile({share}, {buckets})"


def _sum(expression: str, by: str) -> str:
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"
