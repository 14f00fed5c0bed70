"""Digits drawn by a program: ways to write that are rare or absent in the data set.

Its writers crossed their sevens, closed few fours and set no foot below a one. A network that has
seen their digits alone reads a plain seven as a three. The drawings of `tests/playground` have
other points, and are never trained on.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

SIDE, FINE = 8, 4
"""Pixels of a side, and bits of ink along and down each of them, as the data set's scans had."""

WIDEST = 6
"""Pixels: The maximum width of the data set's digits. They are as high as the picture."""

INK = (0.2, 0.34)
"""The share of a picture that is ink, from the thinnest pen to the thickest."""

TREMOR, SLANT, SQUEEZED = 0.025, 0.2, 0.25
"""Maximum error of a point, and lean and narrowing of a digit: shares of its height."""

WRITTEN: tuple[tuple[int, tuple[str, ...]], ...] = (
    (7, ("0,0 6,0 3,9",)),
    (7, ("0,1 6,0 4,4 2,9",)),
    (7, ("0,0 5,0 5,9",)),
    (7, ("0,2 0,0 6,0 3,4 2,9",)),
    (7, ("0,0 3,1 6,0 4,3 3,6 3,9",)),
    (7, ("0,0 6,0 2,9", "2,5 6,5")),
    (4, ("1,0 0,5 6,5", "5,1 4,9")),
    (4, ("0,0 0,4 5,4", "5,0 5,9")),
    (4, ("2,0 0,6 6,6", "4,3 4,9")),
    (4, ("4,9 4,0 0,6 6,6",)),
    (4, ("1,0 1,3 2,4 5,4", "5,0 5,5 4,9")),
    (1, ("3,0 3,9",)),
    (1, ("1,2 3,0 3,9",)),
    (1, ("1,2 3,0 3,9", "0,9 6,9")),
    (1, ("2,1 3,0 3,9", "1,9 5,9")),
    (1, ("0,3 2,1 3,0 3,9",)),
    (9, ("5,2 3,0 1,2 1,4 3,5 5,2 5,0 5,9",)),
    (9, ("5,2 3,0 1,1 0,3 2,5 4,4 5,2 4,6 2,9",)),
    (2, ("0,2 1,0 4,0 5,2 3,5 0,9 6,9",)),
    (2, ("0,1 3,0 5,2 4,4 0,9 2,8 6,9",)),
    (3, ("0,1 3,0 5,2 2,4 5,6 3,9 0,8",)),
    (3, ("0,0 5,0 2,4 5,5 5,7 3,9 0,8",)),
)
"""Digits, each with the points that a pen passes in each of its strokes: across, and down."""


def drawn_digits(count: int, *, seed: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Draw `count` digits: pictures [count, 1, 8, 8] from 0 to 1, and which digit each is."""
    chance = np.random.default_rng(seed)
    chosen = [WRITTEN[place % len(WRITTEN)] for place in range(count)]
    pictures = np.stack([_picture(strokes, chance) for _, strokes in chosen])
    return pictures[:, np.newaxis], np.array([digit for digit, _ in chosen])


def _picture(strokes: tuple[str, ...], chance: np.random.Generator) -> Floats:
    """Draw one by another hand each time, with a pen that leaves as much ink as is wanted."""
    lines = [_points(stroke) / 9 for stroke in strokes]
    lines = [line + chance.normal(0, TREMOR, line.shape) for line in lines]
    lean, narrow = chance.uniform(-SLANT, SLANT), 1 - chance.uniform(0, SQUEEZED)
    lines = [np.stack([narrow * x - lean * y, y], axis=1) for x, y in (line.T for line in lines)]
    ink = chance.uniform(*INK)
    thin, thick = 1.0, 0.4 * SIDE * FINE
    bits = np.zeros((SIDE * FINE, SIDE * FINE))
    for _ in range(7):
        pen = (thin + thick) / 2
        bits = _inked(_placed(lines, pen), pen / 2)
        thin, thick = (pen, thick) if bits.mean() < ink else (thin, pen)
    grey: Floats = bits.reshape(SIDE, FINE, SIDE, FINE).mean(axis=(1, 3)).astype(np.float32)
    return grey


def _points(stroke: str) -> npt.NDArray[np.float64]:
    return np.array([[float(one) for one in point.split(",")] for point in stroke.split()])


def _placed(lines: list[npt.NDArray[np.float64]], pen: float) -> list[npt.NDArray[np.float64]]:
    """Center the lines in the picture at its full height; too wide digits become narrower."""
    points = np.concatenate(lines)
    low, high = points.min(axis=0), points.max(axis=0)
    room = np.array([WIDEST, SIDE]) * FINE - pen
    scale = room / np.maximum(high - low, 1e-9)
    scale[0] = scale.min()
    return [SIDE * FINE / 2 + (line - (low + high) / 2) * scale for line in lines]


def _inked(lines: list[npt.NDArray[np.float64]], radius: float) -> npt.NDArray[np.float64]:
    """Which bits are within `radius` of a line: 1, the others 0."""
    middles = np.arange(SIDE * FINE) + 0.5
    bits = np.stack(np.meshgrid(middles, middles), axis=-1)
    nearest = np.full(bits.shape[:2], np.inf)
    for line in lines:
        for start, end in pairwise(line):
            way = end - start
            along = np.clip(((bits - start) @ way) / max(way @ way, 1e-9), 0, 1)
            nearest = np.minimum(
                nearest, np.linalg.norm(bits - start - along[..., np.newaxis] * way, axis=-1)
            )
    return (nearest <= radius).astype(np.float64)
