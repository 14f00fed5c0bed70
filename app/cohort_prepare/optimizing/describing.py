"""Describe an optimized model as JSON for `cohort optimize --json`."""

from __future__ import annotations

from math import isfinite
from typing import Any

from cohort_prepare.evaluating.timing import Comparison
from cohort_prepare.optimizing.measuring import MeasuredChange
from cohort_prepare.optimizing.optimizer import Optimized, StepOutcome
from cohort_prepare.optimizing.verdicts import Footprint


def describe_optimized(done: Optimized) -> dict[str, Any]:
    """Return times in seconds and sizes in bytes; `ratio` is after/before, with 99 % bounds."""
    return {
        "digest": done.digest,
        "before": _footprint(done.before),
        "after": _footprint(done.after),
        "steps": [_step(one) for one in done.steps],
        "overall": _describe_measured(done.overall),
        "ort_files": [str(file) for file in done.ort_files],
    }


def _step(one: StepOutcome) -> dict[str, Any]:
    return {
        "step": one.step.name,
        "kept": one.kept,
        "why": one.why,
        "what": one.what,
        "versions": dict(one.versions),
        "warnings": list(one.warnings),
        "after": _footprint(one.footprint) if one.footprint else None,
        "measured": _describe_measured(one.measured),
    }


def _footprint(footprint: Footprint) -> dict[str, int]:
    return {"size": footprint.size, "nodes": footprint.nodes}


def _describe_measured(measured: MeasuredChange | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    difference = measured.difference
    return {
        "max_absolute": _number(difference.max_absolute) if difference else None,
        "max_relative": _number(difference.max_relative) if difference else None,
        "runs": {str(rows): _compared(one) for rows, one in measured.runs.items()},
        "load": _compared(measured.load) if measured.load else None,
        "one_size_since": measured.unbatchable,
    }


def _compared(one: Comparison) -> dict[str, Any]:
    return {
        "before": one.before.median,
        "after": one.after.median,
        "ratio": one.ratio.median,
        "low": one.ratio.low,
        "high": one.ratio.high,
    }


def _number(value: float) -> float | None:
    """Return None for infinity, which JSON lacks: NaN or infinity on one side only."""
    return value if isfinite(value) else None
