"""How much room is left, and who takes it?"""

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
    "How much room is left, and who takes it?",
    [REPLICA, PERCENTILE],
    [
        Panel(
            "CPU utilization",
            "Of the cores that each may keep busy. Plan for 60 %; beyond 90 % callers wait.",
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
            "Cores in use, with all that belongs to requests, and those that each replica may use.",
            [
                Query(rate("process_cpu_seconds_total", PROCESS, by="instance"), "{{instance}}"),
                Query(CORES, "{{instance}} limit"),
            ],
        ),
        Panel(
            "Runs in flight",
            "On average, by replica. On a CPU it cannot exceed the number of cores.",
            [
                Query(
                    rate("model_run_duration_seconds_sum", ON_REPLICAS, by="instance"),
                    "{{instance}}",
                ),
                Query(CORES, "{{instance}} limit"),
            ],
        ),
        Panel(
            "Who takes the time",
            "Runs in flight on average, by model and version.",
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
            "Over all models; its inverse is what a core can answer in a second.",
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
            "What balancers give to each. One that gets less is slower, or was away.",
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
            "A second, through all runs, by model.",
            [Query(rate("model_batch_rows_sum", ON_REPLICAS, by="model"), "{{model}}")],
        ),
        Panel(
            "Rows a run",
            "On average. It grows with the load where batching pays.",
            [
                Query(
                    mean("model_batch_rows", ON_REPLICAS, by="model, version"),
                    "{{model}} {{version}}",
                )
            ],
        ),
        Panel(
            "Share of time spent waiting",
            "Of all the time that requests are here. The first sign of a lack of room.",
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
            "Requests, at the moment of each scrape, by replica.",
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
            "Turned away for want of room",
            "A second: a full queue or a full process.",
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
            "How late it gets to what is due. Every answer is late by as much.",
            [Query(quantile("event_loop_lag_seconds", ON_REPLICAS, by="instance"), "{{instance}}")],
            "s",
            thresholds=(0.1,),
        ),
        Panel(
            "Memory that requests hold",
            "As a share of what they may hold; beyond that they get 429.",
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
            "As a share of what the process may have.",
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
