"""Decide if a recipe's outputs are acceptable, if it pays, and which recipe is best.

Differences that may be chance do not count: rows that became wrong are compared with rows that
became right by a sign test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from cohort_prepare.evaluating.accuracy import sign_test
from cohort_prepare.quantizing.measuring import MeasuredPair
from cohort_prepare.quantizing.quality import Quality

CHANCE = 0.05
"""Significance level of the sign test."""

MIN_COSINE = 0.99
"""For outputs without a decision, mean over the rows."""

SLOWER_BELOW, FASTER_FROM, SMALLER_TO = 0.9, 1.1, 0.75
"""Ratios to the original: a recipe is slower if its speed at any batch size is below the first.
It pays if its mean speed reaches the second, or its size does not exceed the third."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Allowed loss of quality.

    drop: Absolute loss of accuracy; 0.01 is a percentage point. Without labels, the share of rows
        with another decision.
    """

    drop: float = 0.01


NEARLY_AS_FAST = 0.95
"""Share of the fastest recipe's speed above which the size decides."""


def why_unacceptable(quality: Quality, limits: Limits) -> str:
    """Return the reason why outputs are not acceptable; "" if they are."""
    if quality.broken:
        return f"its outputs are unusable: {quality.broken}"
    rows = quality.rows
    if (labels := quality.labels) is not None:
        drop = (labels.lost - labels.gained) / rows
        chance = sign_test(labels.lost, labels.gained)
        if drop > limits.drop and chance < CHANCE:
            return (
                f"accuracy drops by {drop:.2%} ({labels.lost} of {rows} rows lost, "
                f"{labels.gained} gained), more than the allowed {limits.drop:.2%}"
            )
        return ""
    if quality.decision:
        allowed = max(1, int(limits.drop * rows))
        if quality.changed > allowed:
            return (
                f"its decision differs on {quality.changed} of {rows} rows "
                f"({quality.changed / rows:.2%}), more than the allowed {allowed}"
            )
        return ""
    if quality.cosine < MIN_COSINE:
        return f"the outputs' cosine is {quality.cosine:.4f}, below the required {MIN_COSINE:g}"
    return ""


def least_drop(rows: int) -> float:
    """Return the smallest significant loss of accuracy on `rows` labelled rows."""
    return next(count for count in range(1, 100) if sign_test(count, 0) < CHANCE) / max(rows, 1)


def speeds(pair: MeasuredPair) -> Mapping[int, float]:
    """Return the speed relative to the original in a server, by batch size."""
    rows = pair.original.seconds.keys() & pair.candidate.seconds.keys()
    return {
        count: pair.original.in_service(count) / pair.candidate.in_service(count)
        for count in sorted(rows)
    }


def overall(ratios: Mapping[int, float]) -> float:
    """Return the geometric mean of the ratios."""
    return float(prod(ratios.values()) ** (1 / len(ratios)))


def why_not(pair: MeasuredPair, limits: Limits) -> str:
    """Return the reason why a recipe does not pay; "" if it does."""
    if reason := why_unacceptable(pair.quality, limits):
        return reason
    ratios = speeds(pair)
    slowest = min(ratios, key=lambda rows: ratios[rows])
    if ratios[slowest] < SLOWER_BELOW:
        return f"it is {1 / ratios[slowest]:.1f} times slower at {_rows(slowest)}" + (
            f", since {pair.candidate.unbatchable}" if loses_batching(pair) and slowest > 1 else ""
        )
    size = pair.candidate.size / pair.original.size
    if overall(ratios) < FASTER_FROM and size > SMALLER_TO:
        return (
            f"it is only {overall(ratios):.2f} times as fast on average, and {1 - size:.0%} smaller"
        )
    return ""


def loses_batching(pair: MeasuredPair) -> bool:
    """Return True if the original can be batched, but the quantized model cannot."""
    return not pair.original.unbatchable and bool(pair.candidate.unbatchable)


def best(pairs: Mapping[str, MeasuredPair], limits: Limits) -> str:
    """Return the best recipe, or "": the fastest on average, or the smallest of similar ones."""
    good = {name: pair for name, pair in pairs.items() if not why_not(pair, limits)}
    if not good:
        return ""
    fastest = max(overall(speeds(pair)) for pair in good.values())
    near = [
        name for name, pair in good.items() if overall(speeds(pair)) >= NEARLY_AS_FAST * fastest
    ]
    return min(near, key=lambda name: (good[name].candidate.size, -good[name].quality.cosine))


def closest(qualities: Mapping[str, Quality], limits: Limits) -> str:
    """Return the name with the closest outputs: acceptable ones first, then by noise."""
    return min(
        qualities,
        key=lambda name: (bool(why_unacceptable(qualities[name], limits)), qualities[name].noise),
    )


def pareto(pairs: Mapping[str, MeasuredPair], limits: Limits) -> Sequence[str]:
    """Return acceptable recipes that no other beats in both size and mean speed."""
    good = {
        name: pair for name, pair in pairs.items() if not why_unacceptable(pair.quality, limits)
    }
    points = {name: (one.candidate.size, -overall(speeds(one))) for name, one in good.items()}
    return [
        name
        for name, point in points.items()
        if not any(
            other != point and other[0] <= point[0] and other[1] <= point[1]
            for other in points.values()
        )
    ]


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
