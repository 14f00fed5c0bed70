"""Results of quantization as JSON."""

from __future__ import annotations

from typing import Any

from cohort_prepare.quantizing.measuring import ModelMeasurement
from cohort_prepare.quantizing.quality import Quality
from cohort_prepare.quantizing.results import Candidate, Quantized
from cohort_prepare.quantizing.verdict import (
    Limits,
    loses_batching,
    pareto,
    speeds,
    why_not,
    why_unacceptable,
)


def describe_quantized(result: Quantized, limits: Limits) -> dict[str, Any]:
    """Return the keys of the command's JSON."""
    front = pareto(result.pairs, limits)
    return {
        "recommended": result.chosen or None,
        "reason": result.reason,
        "notes": list(result.notes),
        "threads": 1,
        "generated_inputs": result.generated,
        "calibration_rows": result.calibration_rows,
        "weights": {
            "bytes": result.facts.weight_bytes,
            "quantizable_bytes": result.facts.quantizable_bytes,
            "quantizable_nodes": len(result.facts.quantizable),
        },
        "original": None if result.original is None else _measured(result.original),
        "recipes": [_candidate(one, limits, one.name in front) for one in result.candidates],
    }


def _candidate(one: Candidate, limits: Limits, on_front: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"name": one.name, "family": one.recipe.family}
    if one.pair is None:
        return {**described, "error": one.failure}
    described |= {
        **_measured(one.pair.candidate),
        "size_ratio": one.pair.candidate.size / one.pair.original.size,
        "speed_in_service": {str(rows): ratio for rows, ratio in speeds(one.pair).items()},
        "original_latency_ms": _milliseconds(one.pair.original),
        "outputs": _quality(one.pair.quality),
        "acceptable": not why_unacceptable(one.pair.quality, limits),
        "worth_it": not (reason := why_not(one.pair, limits)),
        "why_not": reason,
        "costs_batching": loses_batching(one.pair),
        "pareto": on_front,
        "excluded_nodes": list(one.recipe.excluded),
    }
    if one.methods:
        described["methods"] = {name: _quality(quality) for name, quality in one.methods.items()}
    if one.found is not None:
        described["search"] = {
            "tried": one.found.tried,
            "complete": one.found.complete,
            "noise": one.found.noise,
        }
    return described


def _measured(one: ModelMeasurement) -> dict[str, Any]:
    return {
        "size_bytes": one.size,
        "load_ms": one.load_seconds * 1000,
        "latency_ms": _milliseconds(one),
        "batching_off": one.unbatchable,
        "row_influence": one.row_influence,
        "rows": one.rows,
    }


def _milliseconds(one: ModelMeasurement) -> dict[str, float]:
    return {str(rows): seconds * 1000 for rows, seconds in one.seconds.items()}


def _quality(one: Quality) -> dict[str, Any]:
    described: dict[str, Any] = {
        "rows": one.rows,
        "cosine": one.cosine,
        "least_cosine": one.least_cosine,
        "noise": one.noise,
        "max_absolute": one.max_absolute,
        "max_relative": one.max_relative,
        "decided_otherwise": one.changed if one.decision else None,
        "unusable": one.broken,
    }
    if one.labels is not None:
        described |= {
            "accuracy_before": one.labels.before,
            "accuracy": one.labels.after,
            "rows_lost": one.labels.lost,
            "rows_gained": one.labels.gained,
        }
    return described
