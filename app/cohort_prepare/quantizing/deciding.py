"""Which of the recipes tried is taken, and what there is to say about it."""

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
"""Times the original's row influence, from which it is worth a word."""

FEW_ROWS = 100
"""Fewer say little about the range of an activation."""


def decide(
    facts: GraphFacts,
    options: QuantizeOptions,
    candidates: Sequence[Candidate],
    *,
    calibration_rows: int,
    notes: Sequence[str],
) -> Quantized:
    """Take one of the candidates, or none.

    calibration_rows: How many rows the static recipe was calibrated with.
    notes: What is to be said besides.
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
    """A sentence for a recipe."""
    ratios = speeds(pair)
    figures = ", ".join(f"{ratio:.1f} at {rows}" for rows, ratio in ratios.items())
    size = pair.original.size / pair.candidate.size
    return (
        f"{name} is {overall(ratios):.1f} times as fast in service (by rows: {figures}) and "
        f"{size:.1f} times smaller; {quality_text(pair.quality)}"
    )


def _why_none(pairs: Mapping[str, MeasuredPair], limits: Limits) -> str:
    reasons = [f"{name}: {why_not(pair, limits)}" for name, pair in pairs.items()]
    return f"no recipe is worth it ({'; '.join(reasons) or 'all failed'})"


def _notes(
    options: QuantizeOptions, pairs: Mapping[str, MeasuredPair], calibration_rows: int
) -> list[str]:
    notes = []
    if options.generated:
        notes.append(
            "outputs were compared on generated inputs, which say little about real ones: give "
            "some with --inputs"
        )
    elif options.inputs is None:
        notes.append(
            "outputs were compared on the rows of the calibration: others, given with --inputs, "
            "say more"
        )
    if 0 < calibration_rows < FEW_ROWS:
        notes.append(
            f"{calibration_rows} rows are few for a calibration: what exceeds their range is cut "
            f"off; give {FEW_ROWS} or more"
        )
    labelled = [pair.quality for pair in pairs.values() if pair.quality.labels is not None]
    if labelled and (least := least_drop(labelled[0].rows)) > 2 * options.limits.drop:
        notes.append(
            f"on {labelled[0].rows} labelled rows, chance may hide a fall of accuracy of up to "
            f"{least:.1%}: give more to be sure of {options.limits.drop:.1%}"
        )
    return [*notes, *_batching_notes(pairs)]


def _batching_notes(pairs: Mapping[str, MeasuredPair]) -> Iterator[str]:
    """A sentence for each recipe that costs batching, or whose rows change with those beside."""
    kept = [name for name, pair in pairs.items() if not pair.candidate.unbatchable]
    instead = f"; batching stays with {' and '.join(kept)}" if kept else ""
    for name, pair in pairs.items():
        one, original = pair.candidate, pair.original
        if loses_batching(pair):
            rows = max(one.seconds)
            yield (
                f"{name} costs batching in service, since {one.unbatchable}: "
                f"{rows} callers' rows take {one.in_service(rows) * 1000:.2f} ms one by one, where "
                f"one batch takes {one.seconds[rows] * 1000:.2f} and the original's "
                f"{original.in_service(rows) * 1000:.2f}{instead}"
            )
        elif one.row_influence > INFLUENCE * max(original.row_influence, 1e-4):
            by = "rounding" if not one.unbatchable else "the rows beside it; a server runs it alone"
            yield (
                f"a row of a batch changes an output of {name} by up to {one.row_influence:.2%} of "
                f"the largest one, through {by}"
            )
