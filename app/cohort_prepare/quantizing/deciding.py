"""Choose one of the recipes, and describe the choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cohort_prepare.quantizing.measuring import MeasuredPair
from cohort_prepare.quantizing.recipes import GraphFacts
from cohort_prepare.quantizing.results import Candidate, Quantized, QuantizeOptions, quality_text
from cohort_prepare.quantizing.verdict import (
    Limits,
    best,
    least_drop,
    loses_batching,
    overall,
    speeds,
    why_not,
    why_unacceptable,
)

INFLUENCE = 10
"""Ratio to the original's row influence above which a note is given."""

FEW_ROWS = 100
"""Fewer rows say little about the range of an activation."""


def decide(
    facts: GraphFacts,
    options: QuantizeOptions,
    candidates: Sequence[Candidate],
    *,
    calibration_rows: int,
    notes: Sequence[str],
) -> Quantized:
    """Choose one of the candidates, or none.

    calibration_rows: Rows used to calibrate the static recipe.
    notes: Further notes for the user.
    """
    limits = options.limits
    pairs = {one.name: one.pair for one in candidates if one.pair is not None}
    if options.recipe == "auto":
        chosen = best(pairs, limits)
        reason = _why(chosen, pairs[chosen]) if chosen else _why_none(pairs, limits)
        acceptable = bool(chosen)
    else:
        chosen = candidates[0].name
        refused = why_unacceptable(pairs[chosen].quality, limits)
        hint = why_not(pairs[chosen], limits)
        reason = refused or (f"but {hint}" if hint else _why(chosen, pairs[chosen]))
        acceptable = not refused
    return Quantized(
        facts,
        tuple(candidates),
        chosen if acceptable else "",
        reason,
        acceptable,
        calibration_rows,
        options.generated,
        (*notes, *_notes(options, pairs, calibration_rows)),
    )


def _why(name: str, pair: MeasuredPair) -> str:
    """Describe why a recipe was chosen."""
    ratios = speeds(pair)
    figures = ", ".join(f"{ratio:.1f} at {rows}" for rows, ratio in ratios.items())
    size = pair.original.size / pair.candidate.size
    return (
        f"{name} is {overall(ratios):.1f} times as fast in a server (by rows: {figures}) and "
        f"{size:.1f} times smaller; {quality_text(pair.quality)}"
    )


def _why_none(pairs: Mapping[str, MeasuredPair], limits: Limits) -> str:
    reasons = [f"{name}: {why_not(pair, limits)}" for name, pair in pairs.items()]
    return f"no recipe pays ({'; '.join(reasons) or 'all failed'})"


def _notes(
    options: QuantizeOptions, pairs: Mapping[str, MeasuredPair], calibration_rows: int
) -> list[str]:
    notes = []
    if options.generated:
        notes.append(
            "outputs were compared on generated inputs, which differ from real ones: use --inputs "
            "with real ones"
        )
    elif options.inputs is None:
        notes.append(
            "outputs were compared on the calibration rows: use --inputs with other rows for a "
            "better test"
        )
    if 0 < calibration_rows < FEW_ROWS:
        notes.append(
            f"{calibration_rows} rows are few for a calibration, and larger values will be cut "
            f"off; use at least {FEW_ROWS}"
        )
    labelled = [pair.quality for pair in pairs.values() if pair.quality.labels is not None]
    if labelled and (least := least_drop(labelled[0].rows)) > 2 * options.limits.drop:
        notes.append(
            f"on {labelled[0].rows} labelled rows, chance may hide a loss of accuracy of up to "
            f"{least:.1%}: use more rows to detect {options.limits.drop:.1%}"
        )
    return [*notes, *_batching_notes(pairs)]


def _batching_notes(pairs: Mapping[str, MeasuredPair]) -> Iterator[str]:
    """Yield a note for each recipe that prevents batching, or whose rows influence each other."""
    kept = [name for name, pair in pairs.items() if not pair.candidate.unbatchable]
    instead = f"; {' and '.join(kept)} can be batched" if kept else ""
    for name, pair in pairs.items():
        one, original = pair.candidate, pair.original
        if loses_batching(pair):
            rows = max(one.seconds)
            yield (
                f"{name} cannot be batched, since {one.unbatchable}: {rows} rows take "
                f"{one.in_service(rows) * 1000:.2f} ms one by one, "
                f"{one.seconds[rows] * 1000:.2f} ms as a batch, and with the original "
                f"{original.in_service(rows) * 1000:.2f} ms{instead}"
            )
        elif one.row_influence > INFLUENCE * max(original.row_influence, 1e-4):
            by = "rounding" if not one.unbatchable else "other rows; a server runs requests alone"
            yield (
                f"batching changes an output of {name} by up to {one.row_influence:.2%} of the "
                f"largest value, through {by}"
            )
