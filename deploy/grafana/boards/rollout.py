"""Compare each variant with the baseline, and the shadow with the responses."""

from deploy.grafana.board import Board, Panel, Query, Variable
from deploy.grafana.boards.parts import (
    CHOSEN_MODEL,
    OF_MODEL,
    ON_REPLICAS,
    PERCENTILE,
    REPLICA,
    counted,
    events,
    quantile,
    rate,
)

BASELINE = Variable("baseline", "Baseline", 'rollout_weight{model="$model"}', "variant")
VARIANTS = f'{OF_MODEL},variant!=""'
OF_BASELINE = f'{OF_MODEL},variant="$baseline"'
# A run that fails because of its input gives InvalidInput, as the decoder does.
ERRORS = 'code=~"InvalidInput|InferenceFailed|DeadlineExceeded"'
DURATION = "model_inference_duration_seconds"


def error_share(labels: str, *, by: str = "") -> str:
    """Return the query of the share of errors in the time shown; 0 without an error."""
    all_of_them = counted("model_inference_total", labels, by=by)
    errors = counted("model_inference_total", f"{labels},{ERRORS}", by=by)
    return f"({errors} or {all_of_them} * 0) / {all_of_them}"


def evidence(metric: str) -> str:
    """Return the query of the guard's evidence, over all chosen replicas."""
    return f"sum by (variant, version, limit, side) ({metric}{{{OF_MODEL}}})"


RATIO = (
    f"{quantile(DURATION, VARIANTS, by='variant')}"
    f" / on () group_left () {quantile(DURATION, OF_BASELINE)}"
)


ROLLOUT = Board(
    "cohort-rollout",
    "Cohort: rollout",
    "Each variant next to the baseline with its evidence, and the shadow next to the responses.",
    [CHOSEN_MODEL, BASELINE, REPLICA, PERCENTILE],
    [
        Panel(
            "Requests",
            "The number that each variant answered in the time shown.",
            [Query(counted("model_inference_total", VARIANTS, by="variant, version"))],
            kind="table",
            width=8,
            decimals=0,
        ),
        Panel(
            "Errors",
            "The number in the time shown. Callers may cause InvalidInput: compare the baseline.",
            [Query(counted("model_inference_total", f"{VARIANTS},{ERRORS}", by="variant, code"))],
            kind="table",
            width=8,
            decimals=0,
        ),
        Panel(
            "Rolled back",
            "Decisions of the replicas since their start; a shadow has no variant.",
            [Query(f"sum by (variant, version, reason) (rollout_rollbacks_total{{{OF_MODEL}}})")],
            kind="table",
            width=8,
            decimals=0,
        ),
        Panel(
            "Guard: evidence against each limit",
            "The logarithm of the evidence divided by that of the threshold, in the replica with "
            "the most evidence. At 1 the variant is rolled back. Without a variant: the shadow.",
            [
                Query(
                    "max by (variant, version, limit) "
                    f"(rollout_evidence_log10{{{OF_MODEL}}}"
                    f" / rollout_evidence_threshold_log10{{{OF_MODEL}}})",
                    "{{variant}} {{version}} {{limit}}",
                )
            ],
            width=8,
            decimals=2,
            thresholds=(1,),
        ),
        Panel(
            "Guard: requests that are evidence",
            "By limit, of the variant and of the baseline; empty without a guard.",
            [Query(evidence("rollout_evidence_requests"))],
            kind="table",
            width=8,
            decimals=0,
        ),
        Panel(
            "Guard: bad requests among them",
            "Those that failed, were slow or disagreed.",
            [Query(evidence("rollout_evidence_bad_requests"))],
            kind="table",
            width=8,
            decimals=0,
        ),
        Panel(
            "Weights",
            "The weights of the rollouts file; 0 for a variant that was rolled back.",
            [
                Query(
                    f"max by (variant, version) (rollout_weight{{{OF_MODEL}}})",
                    "{{variant}} {{version}}",
                )
            ],
        ),
        Panel(
            "Share of requests",
            "The share that each variant actually got.",
            [
                Query(
                    f"{rate('model_inference_total', VARIANTS, by='variant')}"
                    f" / on () group_left () {rate('model_inference_total', VARIANTS)}",
                    "{{variant}}",
                )
            ],
            "percentunit",
            kind="stack",
        ),
        Panel(
            "Error share",
            "The share of each variant's requests, over a window as long as the time shown.",
            [Query(error_share(VARIANTS, by="variant"), "{{variant}}")],
            "percentunit",
        ),
        Panel(
            "Error share beyond the baseline's",
            "Compare it with the guard's max_error_rate_increase.",
            [
                Query(
                    f"{error_share(VARIANTS, by='variant')}"
                    f" - on () group_left () ({error_share(OF_BASELINE)})",
                    "{{variant}}",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Time to answer",
            "By variant, at the percentile chosen above.",
            [
                Query(quantile(DURATION, VARIANTS, by="variant"), "{{variant}}"),
                Query(f"max(model_latency_objective_seconds{{{OF_MODEL}}})", "objective"),
            ],
            "s",
        ),
        Panel(
            "Time to answer over the baseline's",
            "1 is equally fast. Compare it with the guard's max_latency_ratio.",
            [Query(RATIO, "{{variant}}")],
            decimals=2,
        ),
        Panel(
            "Shadow: copies",
            "The number in the time shown: compared, answered differently, and dropped.",
            [
                Query(
                    counted("shadow_compared_total", OF_MODEL, by="version"), "{{version}} compared"
                ),
                Query(
                    counted("shadow_disagreement_total", OF_MODEL, by="version"),
                    "{{version}} different",
                ),
                Query(
                    counted("shadow_dropped_total", OF_MODEL, by="version"), "{{version}} dropped"
                ),
            ],
            kind="number",
            width=12,
            decimals=0,
        ),
        Panel(
            "Rollouts file is valid",
            "0 if the file is invalid on a replica.",
            [Query(f"min(rollouts_config_valid{{{ON_REPLICAS}}})")],
            kind="number",
            width=12,
            decimals=0,
        ),
        Panel(
            "Shadow: disagreement",
            "The share of copies answered differently. Compare it with max_disagreement.",
            [
                Query(
                    f"{rate('shadow_disagreement_total', OF_MODEL, by='version')}"
                    f" / {rate('shadow_compared_total', OF_MODEL, by='version')}",
                    "{{version}}",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Shadow: largest difference in an output",
            "By request, absolute.",
            [
                Query(
                    quantile("shadow_max_abs_difference", OF_MODEL, by="version, output"),
                    "{{version}} {{output}}",
                )
            ],
        ),
    ],
    events(OF_MODEL),
)
