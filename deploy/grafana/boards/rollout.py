"""Each variant against the baseline, and the shadow against what was answered."""

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
    """In the time shown; 0 where there was no error."""
    all_of_them = counted("model_inference_total", labels, by=by)
    errors = counted("model_inference_total", f"{labels},{ERRORS}", by=by)
    return f"({errors} or {all_of_them} * 0) / {all_of_them}"


def evidence(metric: str) -> str:
    """A count of the guard's evidence, of all replicas chosen."""
    return f"sum by (variant, version, limit, side) ({metric}{{{OF_MODEL}}})"


RATIO = (
    f"{quantile(DURATION, VARIANTS, by='variant')}"
    f" / on () group_left () {quantile(DURATION, OF_BASELINE)}"
)


ROLLOUT = Board(
    "cohort-rollout",
    "Cohort: rollout",
    "Each variant against the baseline, with its evidence, and the shadow against the answers.",
    [CHOSEN_MODEL, BASELINE, REPLICA, PERCENTILE],
    [
        Panel(
            "Requests",
            "How many each variant answered in the time shown.",
            [Query(counted("model_inference_total", VARIANTS, by="variant, version"))],
            kind="table",
            width=8,
            decimals=0,
        ),
        Panel(
            "Errors",
            "In the time shown. InvalidInput may be the callers' own: compare with the baseline.",
            [Query(counted("model_inference_total", f"{VARIANTS},{ERRORS}", by="variant, code"))],
            kind="table",
            width=8,
            decimals=0,
        ),
        Panel(
            "Rolled back",
            "Decided by the replicas since they started; no variant: the shadow was stopped.",
            [Query(f"sum by (variant, version, reason) (rollout_rollbacks_total{{{OF_MODEL}}})")],
            kind="table",
            width=8,
            decimals=0,
        ),
        Panel(
            "Guard: evidence against each limit",
            "As a share of what rolls back, both logarithms, in the replica where it is the most: "
            "each judges by its own. At 1 the variant is rolled back; no variant: the shadow.",
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
            "By limit, of the variant and of the baseline beside it; empty without a guard.",
            [Query(evidence("rollout_evidence_requests"))],
            kind="table",
            width=8,
            decimals=0,
        ),
        Panel(
            "Guard: bad ones among them",
            "Those that failed, were slow or disagreed.",
            [Query(evidence("rollout_evidence_bad_requests"))],
            kind="table",
            width=8,
            decimals=0,
        ),
        Panel(
            "Weights",
            "As the rollouts file has them; 0 for a variant that was rolled back.",
            [
                Query(
                    f"max by (variant, version) (rollout_weight{{{OF_MODEL}}})",
                    "{{variant}} {{version}}",
                )
            ],
        ),
        Panel(
            "Share of requests",
            "What each variant really got.",
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
            "Of each variant's requests, over as long as is shown, up to each point.",
            [Query(error_share(VARIANTS, by="variant"), "{{variant}}")],
            "percentunit",
        ),
        Panel(
            "Error share beyond the baseline's",
            "To compare with the guard's max_error_rate_increase.",
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
            "1 is as fast; to compare with the guard's max_latency_ratio.",
            [Query(RATIO, "{{variant}}")],
            decimals=2,
        ),
        Panel(
            "Shadow: copies",
            "In the time shown: compared, answered differently, and given up for want of room.",
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
            "0 if a replica refuses it.",
            [Query(f"min(rollouts_config_valid{{{ON_REPLICAS}}})")],
            kind="number",
            width=12,
            decimals=0,
        ),
        Panel(
            "Shadow: disagreement",
            "The share of copies answered differently; to compare with max_disagreement.",
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
