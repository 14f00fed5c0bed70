"""Show how much capacity is left, and which models use it."""

from deploy.grafana.board import Board, Panel, Query
from deploy.grafana.boards.parts import (
    ON_REPLICAS,
    PERCENTILE,
    REPLICA,
    TO_MODEL,
    events,
    mean,
    quantile,
    rate,
)

REACHED = f'{ON_REPLICAS},version!=""'
PROCESS = f'job="cohort",{ON_REPLICAS}'
CORES = f"max by (instance) (process_cpu_cores{{{PROCESS}}})"

CAPACITY = Board(
    "cohort-capacity",
    "Cohort: capacity",
    "The remaining capacity, and the models that use it.",
    [REPLICA, PERCENTILE],
    [
        Panel(
            "CPU utilization",
            "The share of its cores that a replica uses. Plan for 60 %; beyond 90 % callers wait.",
            [
                Query(
                    f"{rate('process_cpu_seconds_total', PROCESS, by='instance')}"
                    f" / on (instance) {CORES}",
                    "{{instance}}",
                )
            ],
            "percentunit",
            thresholds=(0.6, 0.9),
        ),
        Panel(
            "CPU",
            "Cores in use by the whole process, and the cores that each replica may use.",
            [
                Query(rate("process_cpu_seconds_total", PROCESS, by="instance"), "{{instance}}"),
                Query(CORES, "{{instance}} limit"),
            ],
        ),
        Panel(
            "Runs in flight",
            "The average by replica. On a CPU it cannot exceed the number of cores.",
            [
                Query(
                    rate("model_run_duration_seconds_sum", ON_REPLICAS, by="instance"),
                    "{{instance}}",
                ),
                Query(CORES, "{{instance}} limit"),
            ],
        ),
        Panel(
            "Runs in flight by model",
            "The average by model and version.",
            [
                Query(
                    rate("model_run_duration_seconds_sum", ON_REPLICAS, by="model, version"),
                    "{{model}} {{version}}",
                )
            ],
            kind="stack",
            link=TO_MODEL,
        ),
        Panel(
            "CPU time a request",
            "The mean over all models; its inverse is the requests that a core answers a second.",
            [
                Query(
                    f"{rate('process_cpu_seconds_total', PROCESS)}"
                    f" / {rate('model_inference_total', ON_REPLICAS)}"
                )
            ],
            "s",
        ),
        Panel(
            "Share of requests by replica",
            "The share of requests that each gets. A replica that gets less is slower or was down.",
            [
                Query(
                    f"{rate('model_inference_total', ON_REPLICAS, by='instance')}"
                    f" / on () group_left () {rate('model_inference_total', ON_REPLICAS)}",
                    "{{instance}}",
                )
            ],
            "percentunit",
            kind="stack",
        ),
        Panel(
            "Rows",
            "Rows a second in all runs, by model.",
            [Query(rate("model_batch_rows_sum", ON_REPLICAS, by="model"), "{{model}}")],
        ),
        Panel(
            "Rows a run",
            "The average. It grows with the load if batching pays.",
            [
                Query(
                    mean("model_batch_rows", ON_REPLICAS, by="model, version"),
                    "{{model}} {{version}}",
                )
            ],
        ),
        Panel(
            "Share of time spent waiting",
            "The share of requests' time in the queue. It is the first sign of missing capacity.",
            [
                Query(
                    f"{rate('model_queue_duration_seconds_sum', ON_REPLICAS, by='model')}"
                    f" / {rate('model_inference_duration_seconds_sum', REACHED, by='model')}",
                    "{{model}}",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Waiting and in flight",
            "Requests at each scrape, by replica.",
            [
                Query(
                    f"sum by (instance) (model_queue_requests{{{ON_REPLICAS}}})",
                    "{{instance}} waiting",
                ),
                Query(
                    f"sum by (instance) (model_inflight_requests{{{ON_REPLICAS}}})",
                    "{{instance}} in flight",
                ),
            ],
        ),
        Panel(
            "Rejected: no capacity",
            "Requests a second: the queue or the process was full.",
            [
                Query(
                    rate("model_rejected_total", f'{ON_REPLICAS},reason="Overloaded"', by="model"),
                    "{{model}}",
                )
            ],
            "reqps",
        ),
        Panel(
            "Event loop",
            "The delay of the event loop. Every response is as late.",
            [Query(quantile("event_loop_lag_seconds", ON_REPLICAS, by="instance"), "{{instance}}")],
            "s",
            thresholds=(0.1,),
        ),
        Panel(
            "Memory that requests hold",
            "The share of the memory budget. Requests over the budget get 429.",
            [
                Query(
                    f"memory_held_bytes{{{PROCESS}}} / memory_budget_bytes{{{PROCESS}}}",
                    "{{instance}}",
                )
            ],
            "percentunit",
            thresholds=(0.8, 1),
        ),
        Panel(
            "Memory",
            "Resident, by replica.",
            [Query(f"process_resident_memory_bytes{{{PROCESS}}}", "{{instance}}")],
            "bytes",
        ),
        Panel(
            "Open files and connections",
            "The share of the process's limit.",
            [
                Query(
                    f"process_open_fds{{{PROCESS}}} / process_max_fds{{{PROCESS}}}",
                    "{{instance}}",
                )
            ],
            "percentunit",
            thresholds=(0.8, 0.95),
        ),
    ],
    events(ON_REPLICAS),
)
