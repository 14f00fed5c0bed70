"""Fifty digits as people draw them: five hands, each with its own shapes, slant, size and tremor.

A shape is a list of strokes, a stroke the points that the pen passes, in hundredths of the canvas
with y downwards. Between them it goes in a curve, or straight where a stroke is of two points.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Point = tuple[float, float]
Stroke = list[Point]
Shape = Sequence[Sequence[Point]]

SHAPES: dict[str, list[Shape]] = json.loads(Path(__file__).with_name("digits.json").read_text())
"""By digit, a few ways to write it: with and without loops, bars, serifs and corners."""


@dataclass(frozen=True, slots=True)
class Hand:
    """The style of a person who draws. All lengths are of the canvas.

    slant: Distance by which the top leans to the right of the bottom.
    wide, high: The size of the drawing.
    left, top: Its place.
    tremor: Distance of a point from its place.
    """

    slant: float
    wide: float
    high: float
    left: float
    top: float
    tremor: float


HANDS = (
    Hand(slant=0.0, wide=0.8, high=0.8, left=0.1, top=0.1, tremor=0.004),  # large and straight
    Hand(slant=0.14, wide=0.55, high=0.75, left=0.2, top=0.12, tremor=0.006),  # leans to the right
    Hand(slant=-0.08, wide=0.5, high=0.55, left=0.05, top=0.4, tremor=0.005),  # in a corner
    Hand(slant=0.05, wide=0.35, high=0.38, left=0.35, top=0.3, tremor=0.006),  # small
    Hand(slant=0.08, wide=0.75, high=0.7, left=0.15, top=0.2, tremor=0.012),  # trembles
)


def drawings() -> Iterator[tuple[int, list[Stroke]]]:
    """Fifty digits with their strokes, each point from 0 to 1 of the canvas."""
    for digit, shapes in SHAPES.items():
        for number, hand in enumerate(HANDS):
            drawn = random.Random(f"{digit} {number}")
            shape = shapes[number % len(shapes)]
            yield int(digit), [_by(hand, _curve(stroke), drawn) for stroke in shape]


def _by(hand: Hand, stroke: Stroke, drawn: random.Random) -> Stroke:
    placed = []
    for x, y in stroke:
        lean = hand.slant * (0.5 - y / 100)
        at_x = hand.left + hand.wide * (x / 100 + lean) + drawn.gauss(0, hand.tremor)
        at_y = hand.top + hand.high * y / 100 + drawn.gauss(0, hand.tremor)
        placed.append((min(0.99, max(0.01, at_x)), min(0.99, max(0.01, at_y))))
    return placed


def _curve(points: Sequence[Point]) -> Stroke:
    """Return a curve through points, by Catmull and Rom, or a line through two."""
    if len(points) == 2:
        start, end = points
        return [_between(start, end, step / 6) for step in range(7)]
    ends = [points[0], *points, points[-1]]
    curve = [points[0]]
    for before, start, end, after in zip(ends, ends[1:], ends[2:], ends[3:], strict=False):
        steps = max(2, round(math.dist(start, end) / 6))
        for step in range(1, steps + 1):
            t = step / steps
            curve.append(
                (
                    _spline(before[0], start[0], end[0], after[0], t),
                    _spline(before[1], start[1], end[1], after[1], t),
                )
            )
    return curve


def _between(start: Point, end: Point, share: float) -> Point:
    return (start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share)


def _spline(before: float, start: float, end: float, after: float, t: float) -> float:
    return 0.5 * (
        2 * start
        + (end - before) * t
        + (2 * before - 5 * start + 4 * end - after) * t**2
        + (3 * start - before - 3 * end + after) * t**3
    )
