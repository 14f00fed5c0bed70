"""Show the outcomes and times of one model, by version and variant."""

from deploy.grafana.board import Board, Panel, Query
from deploy.grafana.boards.parts import (
    CHOSEN_MODEL,
    OF_MODEL,
    PERCENTILE,
    REPLICA,
    TO_ROLLOUT,
    counted,
    events,
    mean,
    quantile,
    rate,
)

REACHED = f'{OF_MODEL},version!=""'
NAMED = "{{version}} {{variant}}"

MODEL = Board(
    "cohort-model",
    "Cohort: model",
    "The outcomes and times of one model, by version and variant.",
    [CHOSEN_MODEL, REPLICA, PERCENTILE],
    [
        Panel(
            "Answers",
            "The number in the time shown, by version, variant and outcome.",
            [Query(counted("model_inference_total", OF_MODEL, by="version, variant, code"))],
            kind="table",
            decimals=0,
        ),
        Panel(
            "State of each version",
            "The number of replicas in each state.",
            [Query(f"sum by (version, state) (model_state{{{OF_MODEL}}} == 1)")],
            kind="table",
            width=5,
            decimals=0,
        ),
        Panel(
            "Provider of each version",
            "The wanted providers in order, the active one, and the number of replicas.",
            [Query(f"sum by (version, wanted, active) (model_provider_info{{{OF_MODEL}}})")],
            kind="table",
            width=7,
            decimals=0,
        ),
        Panel(
            "Requests",
            "Requests a second.",
            [Query(rate("model_inference_total", OF_MODEL, by="version, variant"), NAMED)],
            "reqps",
            kind="stack",
            link=TO_ROLLOUT,
        ),
        Panel(
            "Answers by outcome",
            "Responses a second.",
            [Query(rate("model_inference_total", OF_MODEL, by="code"), "{{code}}")],
            "reqps",
        ),
        Panel(
            "Time to answer",
            "From a request's arrival to its reply, at the percentile chosen above.",
            [
                Query(
                    quantile("model_inference_duration_seconds", REACHED, by="version, variant"),
                    NAMED,
                ),
                Query(f"max(model_latency_objective_seconds{{{OF_MODEL}}})", "objective"),
            ],
            "s",
            link=TO_ROLLOUT,
        ),
        Panel(
            "Slower than the objective",
            "The share of requests, for a model with objective_ms. 1 % spends the budget in 30 "
            "days; 14.4 % for an hour pages.",
            [
                Query(
                    f"{rate('model_slow_requests_total', OF_MODEL, by='version')}"
                    f" / {rate('model_inference_duration_seconds_count', REACHED, by='version')}",
                    "{{version}}",
                )
            ],
            "percentunit",
            thresholds=(0.01, 0.144),
        ),
        Panel(
            "Times to answer",
            "Requests a second by their time, over all versions. Two humps are two kinds of "
            "requests, which a percentile hides.",
            [Query(rate("model_inference_duration_seconds_bucket", REACHED, by="le"), "{{le}}")],
            "s",
            kind="heatmap",
        ),
        Panel(
            "Where the time goes",
            "Averages: the wait for a run, and the run, which several requests may share.",
            [
                Query(
                    mean("model_inference_duration_seconds", REACHED, by="version"),
                    "{{version}} in all",
                ),
                Query(
                    mean("model_queue_duration_seconds", OF_MODEL, by="version"),
                    "{{version}} in the queue",
                ),
                Query(
                    mean("model_run_duration_seconds", OF_MODEL, by="version"), "{{version}} a run"
                ),
            ],
            "s",
        ),
        Panel(
            "Time in the queue",
            "By request.",
            [
                Query(
                    quantile("model_queue_duration_seconds", OF_MODEL, by="version"), "{{version}}"
                )
            ],
            "s",
        ),
        Panel(
            "Time of a run",
            "By run, which serves one or many requests.",
            [Query(quantile("model_run_duration_seconds", OF_MODEL, by="version"), "{{version}}")],
            "s",
        ),
        Panel(
            "Rows and requests a run",
            "Averages, which show how much is batched.",
            [
                Query(mean("model_batch_rows", OF_MODEL, by="version"), "{{version}} rows"),
                Query(mean("model_batch_requests", OF_MODEL, by="version"), "{{version}} requests"),
            ],
        ),
        Panel(
            "Batches",
            "1 if requests share runs on all replicas, with the proof of the graph's rows.",
            [
                Query(
                    f"min by (version, rows) (model_batching{{{OF_MODEL}}})",
                    "{{version}}, rows {{rows}}",
                )
            ],
        ),
        Panel(
            "Rows of runs",
            "Runs a second by their rows, over all versions. It shows if most runs are full, or "
            "only a few.",
            [Query(rate("model_batch_rows_bucket", OF_MODEL, by="le"), "{{le}}")],
            kind="heatmap",
        ),
        Panel(
            "Padding",
            "The padded share of a run's elements.",
            [Query(mean("model_padding_ratio", OF_MODEL, by="version"), "{{version}}")],
            "percentunit",
        ),
        Panel(
            "Waiting and in flight",
            "Requests at each scrape.",
            [
                Query(
                    f"sum by (version) (model_queue_requests{{{OF_MODEL}}})", "{{version}} waiting"
                ),
                Query(
                    f"sum by (version) (model_inflight_requests{{{OF_MODEL}}})",
                    "{{version}} in flight",
                ),
            ],
        ),
        Panel(
            "Rejected and cancelled",
            "Requests a second that were rejected before a queue, or that the caller cancelled.",
            [
                Query(rate("model_rejected_total", OF_MODEL, by="reason"), "{{reason}}"),
                Query(
                    rate("model_cancelled_total", OF_MODEL, by="stage"), "cancelled while {{stage}}"
                ),
            ],
            "reqps",
        ),
        Panel(
            "Time to load",
            "The average over the replicas, with examples, trials and warm-up.",
            [
                Query(
                    f"sum by (version) (model_load_duration_seconds_sum{{{OF_MODEL}}})"
                    f" / sum by (version) (model_load_duration_seconds_count{{{OF_MODEL}}})",
                    "{{version}}",
                )
            ],
            "s",
        ),
    ],
    events(OF_MODEL),
)
