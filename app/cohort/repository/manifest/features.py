"""How the values of inputs were distributed when a model was published.

Plain figures, small and bounded, for whoever compares what callers send with what a model was made
for: between two neighbouring quantiles of numbers there is a twentieth of the values, and so there
should be of the callers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cohort.tensors import BY_DTYPE, Array, Arrays

QUANTILES = 21
"""At 0, 5, …, 100 %."""

MOST_COLUMNS = 256
"""Of an input with more, as of one with more axes, all values are one distribution."""

MOST_SHARES = 50
"""Values whose shares are listed: of numbers if there are no others, of text the most frequent."""

MOST_LISTED_CHARACTERS = 64
"""Of a text that is listed."""

MOST_VALUES = 1 << 20
"""Of a column; of more, equally spaced ones are taken."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The values of one column, or of a whole input.

    count: How many values there were.
    missing: How many of them are NaN, infinite, or an empty text.
    distinct: How many different ones there are among the others.
    shares: The share of each value that is listed, most frequent first; default none.
    quantiles: At 0, 5, …, 100 %: of numbers, of true (1) and false (0), or of the length in
        characters of text; default none: nothing but missing values.
    mean, deviation: Of the same; default 0.
    """

    count: int
    missing: int = 0
    distinct: int = 0
    shares: Mapping[str, float] = field(default_factory=dict)
    quantiles: tuple[float, ...] = ()
    mean: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True, slots=True)
class InputDistribution:
    """The values of one input.

    datatype: Of the input.
    shape: Of all rows together.
    columns: One distribution for each place along the last axis of two, or a single one for all.
    """

    datatype: str
    shape: tuple[int, ...]
    columns: tuple[Distribution, ...]


def describe_features(inputs: Arrays) -> dict[str, InputDistribution]:
    """Say how the values of each input are distributed. Axis 0 is the rows."""
    return {name: _describe(array) for name, array in inputs.items()}


def _describe(array: Array) -> InputDistribution:
    if array.ndim == 2 and array.shape[1] <= MOST_COLUMNS:
        columns = [array[:, place] for place in range(array.shape[1])]
    else:
        columns = [array.reshape(-1)]
    datatype = BY_DTYPE[array.dtype].name
    return InputDistribution(datatype, array.shape, tuple(_distribution(one) for one in columns))


def _distribution(values: Array) -> Distribution:
    count = len(values)
    if count > MOST_VALUES:
        values = values[:: -(-count // MOST_VALUES)]
    if BY_DTYPE[values.dtype].kind == "text":
        present = np.array([text for text in values if text], np.object_)
        listed, of = _shares(present, 0), np.array([len(text) for text in present], np.float64)
    else:
        numbers = values.astype(np.float64)
        of = numbers[np.isfinite(numbers)]
        listed = _shares(of, MOST_SHARES)
    distinct, shares = listed
    missing = len(values) - len(of)
    scaled = round(missing * count / len(values)) if len(values) else 0
    if not len(of):
        return Distribution(count, scaled)
    with np.errstate(over="ignore", invalid="ignore"):  # of the largest numbers there are
        quantiles = np.quantile(of, np.linspace(0, 1, QUANTILES))
        figures = np.nan_to_num([*quantiles, of.mean(), of.std()]).tolist()
    return Distribution(count, scaled, distinct, shares, tuple(figures[:-2]), *figures[-2:])


def _shares(values: Array | NDArray[np.float64], most: int) -> tuple[int, dict[str, float]]:
    """How many different values there are, and the shares of those to be listed.

    most: More different ones than that are not listed at all; 0: the most frequent are.
    """
    found, counts = np.unique(values, return_counts=True)
    if most and len(found) > most:
        return len(found), {}
    order = np.argsort(-counts, kind="stable")[:MOST_SHARES]
    shares: dict[str, float] = {}
    for place in order:
        value = found[place]
        written = value[:MOST_LISTED_CHARACTERS] if isinstance(value, str) else f"{value:.9g}"
        shares[written] = shares.get(written, 0.0) + float(counts[place]) / len(values)
    return len(found), shares
