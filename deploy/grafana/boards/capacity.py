"""How much room is left, and who takes it?"""

from deploy.grafana.board import Board, Panel, Query
from deploy.grafana.boards.parts import ON_REPLICAS, REPLICA, mean, quantiles, rate

REACHED = f'{ON_REPLICAS},version!=""'
PROCESS = f'job="cohort",{ON_REPLICAS}'

CAPACITY = Board(
    "cohort-capacity",
    "Cohort: capacity",
    "How much room is left, and who takes it?",
    [REPLICA],
    [
        Panel(
            "CPU",
            "Cores in use, by replica, with all that belongs to requests.",
            [Query(rate("process_cpu_seconds_total", PROCESS, by="instance"), "{{instance}}")],
        ),
        Panel(
            "Runs in flight",
            "On average, by replica. On a CPU it cannot exceed the number of cores.",
            [
                Query(
                    rate("model_run_duration_seconds_sum", ON_REPLICAS, by="instance"),
                    "{{instance}}",
                )
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
            list(
                quantiles(
                    "event_loop_lag_seconds", ON_REPLICAS, by="instance", legend="{{instance}}"
                )
            ),
            "s",
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
        ),
    ],
)
