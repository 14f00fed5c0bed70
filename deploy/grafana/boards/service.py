"""Show if any model or replica has a problem."""

from deploy.grafana.board import Board, Panel, Query
from deploy.grafana.boards.parts import (
    ON_REPLICAS,
    PERCENTILE,
    REPLICA,
    TO_MODEL,
    counted,
    events,
    quantile,
    rate,
)

REACHED = f'{ON_REPLICAS},version!=""'
FAILURES = "instance_model:failures:sum"
VALID = "instance_model:valid_requests:sum"

SERVICE = Board(
    "cohort-service",
    "Cohort: service",
    "Failures, times and states over all models and replicas.",
    [REPLICA, PERCENTILE],
    [
        Panel(
            "Replicas that answer",
            "Replicas that Prometheus can scrape, and the number that are ready.",
            [
                Query(f'sum(up{{job="cohort",{ON_REPLICAS}}})', "answer"),
                Query(f"sum(server_ready{{{ON_REPLICAS}}})", "ready"),
            ],
            kind="number",
            width=4,
            decimals=0,
        ),
        Panel(
            "Requests",
            "All requests answered in the time shown, with any outcome.",
            [Query(counted("model_inference_total", ON_REPLICAS))],
            kind="number",
            width=5,
            decimals=0,
        ),
        Panel(
            "Valid requests answered",
            "The share in the time shown, without callers' mistakes. The objective is 99.9 %.",
            [Query(f"1 - {counted(FAILURES, ON_REPLICAS)} / {counted(VALID, ON_REPLICAS)}")],
            "percentunit",
            kind="number",
            width=5,
            decimals=3,
            least=0.999,
        ),
        Panel(
            "Error budget left",
            "The budget is 0.1 % of the valid requests of 30 days; below 0 it is overspent.",
            [
                Query(
                    f"1 - sum(increase({FAILURES}{{{ON_REPLICAS}}}[30d]))"
                    f" / sum(increase({VALID}{{{ON_REPLICAS}}}[30d])) / 0.001"
                )
            ],
            "percentunit",
            kind="number",
            width=5,
            decimals=1,
            least=0,
        ),
        Panel(
            "95 of 100 answered within",
            "Over all models, now.",
            [Query(quantile("model_inference_duration_seconds", REACHED, share="0.95"))],
            "s",
            kind="number",
            width=5,
        ),
        Panel(
            "Models that serve",
            "No if a replica has no version of the model that answers.",
            [Query(f"min by (model) (model_serves{{{ON_REPLICAS}}})", "{{model}}")],
            kind="timeline",
            link=TO_MODEL,
        ),
        Panel(
            "Failures among valid requests",
            "The share by model, over five minutes. 0.1 % spends the budget in 30 days.",
            [Query("model:failure_ratio:rate5m", "{{model}}")],
            "percentunit",
            thresholds=(0.001,),
            link=TO_MODEL,
        ),
        Panel(
            "Requests by model",
            "Requests a second.",
            [Query(rate("model_inference_total", ON_REPLICAS, by="model"), "{{model}}")],
            "reqps",
            kind="stack",
            link=TO_MODEL,
        ),
        Panel(
            "Answers that are not OK",
            "Responses a second. 4xx except 429 are callers' mistakes.",
            [
                Query(
                    rate("model_inference_total", f'{ON_REPLICAS},code!="OK"', by="model, code"),
                    "{{model}} {{code}}",
                )
            ],
            "reqps",
            link=TO_MODEL,
        ),
        Panel(
            "Time to answer",
            "From a request's arrival to its reply, by model, at the percentile chosen above.",
            [
                Query(
                    quantile("model_inference_duration_seconds", REACHED, by="model"), "{{model}}"
                ),
                Query(
                    f"max by (model) (model_latency_objective_seconds{{{ON_REPLICAS}}})",
                    "{{model}} objective",
                ),
            ],
            "s",
            link=TO_MODEL,
        ),
        Panel(
            "Budgets' burn rates over an hour",
            "1 spends a budget in 30 days; 14.4 pages if it lasts.",
            [
                Query("model:failure_ratio:rate1h / 0.001", "{{model}} failures"),
                Query("model:slow_ratio:rate1h / 0.01", "{{model}} slow"),
                Query("service:failure_ratio:rate1h / 0.001", "callers' 5xx"),
            ],
            thresholds=(1, 14.4),
            link=TO_MODEL,
        ),
        Panel(
            "Versions by state",
            "Over all replicas.",
            [Query(f"sum by (state) (model_state{{{ON_REPLICAS}}})", "{{state}}")],
            kind="stack",
        ),
        Panel(
            "Versions on another provider than wanted",
            "The number of replicas, such as on the CPU instead of the GPU.",
            [
                Query(
                    f"sum by (model, version) (model_provider_fallback{{{ON_REPLICAS}}})",
                    "{{model}} {{version}}",
                )
            ],
        ),
        Panel(
            "Answered by the fast protocol",
            "HTTP requests a second that did not need FastAPI, which is slower.",
            [Query(rate("http_hot_requests_total", ON_REPLICAS, by="instance"), "{{instance}}")],
            "reqps",
        ),
        Panel(
            "Rollouts file is valid",
            "1 if the replica can read it.",
            [Query(f"rollouts_config_valid{{{ON_REPLICAS}}}", "{{instance}}")],
        ),
    ],
    events(ON_REPLICAS),
)
