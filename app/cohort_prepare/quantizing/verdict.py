"""Whether a recipe's outputs are acceptable, whether it pays, and which is best: decisions only.

Differences that chance explains are none: rows that a recipe gets wrong which were right, and those
that it gets right which were wrong, are compared by a sign test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from cohort_prepare.evaluating.accuracy import sign_test
from cohort_prepare.quantizing.measuring import MeasuredPair
from cohort_prepare.quantizing.quality import Quality

CHANCE = 0.05
"""An outcome of the sign test that is less likely than this is no chance."""

LEAST_COSINE = 0.99
"""Of outputs that decide nothing, on average over the rows."""

SLOWER_BELOW, FASTER_FROM, SMALLER_TO = 0.9, 1.1, 0.75
"""Of the original's speed at any batch size, below which a recipe is slower; of it on average, from
which it pays; of the original's size, up to which it pays where it is not slower."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What outputs may lose.

    drop: Of accuracy, in absolute terms: 0.01 is a percentage point. Without labels, the share of
        rows that may be decided otherwise.
    """

    drop: float = 0.01


NEARLY_AS_FAST = 0.95
"""Of the fastest recipe's speed, from which the size decides."""


def why_unacceptable(quality: Quality, limits: Limits) -> str:
    """Why outputs are not acceptable; "" where they are."""
    if quality.broken:
        return f"its outputs cannot be used: {quality.broken}"
    rows = quality.rows
    if (labels := quality.labels) is not None:
        drop = (labels.lost - labels.gained) / rows
        chance = sign_test(labels.lost, labels.gained)
        if drop > limits.drop and chance < CHANCE:
            return (
                f"accuracy falls by {drop:.2%} ({labels.lost} of {rows} rows lost, "
                f"{labels.gained} gained), where {limits.drop:.2%} is allowed"
            )
        return ""
    if quality.decision:
        allowed = max(1, int(limits.drop * rows))
        if quality.changed > allowed:
            return (
                f"it decides otherwise on {quality.changed} of {rows} rows "
                f"({quality.changed / rows:.2%}), where at most {allowed} may be"
            )
        return ""
    if quality.cosine < LEAST_COSINE:
        return f"the outputs' cosine is {quality.cosine:.4f}, where {LEAST_COSINE:g} is asked for"
    return ""


def least_drop(rows: int) -> float:
    """The smallest fall of accuracy that `rows` labelled rows can tell from chance."""
    return next(count for count in range(1, 100) if sign_test(count, 0) < CHANCE) / max(rows, 1)


def speeds(pair: MeasuredPair) -> Mapping[int, float]:
    """How many times as fast as the original it is in service, by rows."""
    rows = pair.original.seconds.keys() & pair.candidate.seconds.keys()
    return {
        count: pair.original.in_service(count) / pair.candidate.in_service(count)
        for count in sorted(rows)
    }


def overall(ratios: Mapping[int, float]) -> float:
    """Their geometric mean."""
    return float(prod(ratios.values()) ** (1 / len(ratios)))


def why_not(pair: MeasuredPair, limits: Limits) -> str:
    """Why a recipe is not worth taking; "" where it is."""
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
    """Whether the original's requests can share runs, and the quantized model's cannot."""
    return not pair.original.unbatchable and bool(pair.candidate.unbatchable)


def best(pairs: Mapping[str, MeasuredPair], limits: Limits) -> str:
    """The recipe to take, or "": the fastest on average; of nearly equal ones the smallest."""
    good = {name: pair for name, pair in pairs.items() if not why_not(pair, limits)}
    if not good:
        return ""
    fastest = max(overall(speeds(pair)) for pair in good.values())
    near = [
        name for name, pair in good.items() if overall(speeds(pair)) >= NEARLY_AS_FAST * fastest
    ]
    return min(near, key=lambda name: (good[name].candidate.size, -good[name].quality.cosine))


def closest(qualities: Mapping[str, Quality], limits: Limits) -> str:
    """Whose outputs are closest: acceptable ones before others, then those with less noise."""
    return min(
        qualities,
        key=lambda name: (bool(why_unacceptable(qualities[name], limits)), qualities[name].noise),
    )


def pareto(pairs: Mapping[str, MeasuredPair], limits: Limits) -> Sequence[str]:
    """The acceptable recipes than which none is both smaller and faster on average."""
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
