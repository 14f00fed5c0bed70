"""The distribution of the inputs' values when a model was published.

The figures are small and bounded. They serve to compare callers' inputs with the inputs for which a
model was made. Between two neighbouring quantiles of numbers is a twentieth of the values, and the
same should hold for callers' values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cohort.tensors import BY_DTYPE, Array, Arrays

QUANTILES = 21
"""Number of quantiles: at 0, 5, …, 100 %."""

MAX_COLUMNS = 256
"""Limit of columns; an input with more columns or other axes has one distribution for all."""

MAX_SHARES = 50
"""Limit of listed shares: for numbers, only if all fit; for text, the most frequent."""

MAX_LISTED_CHARACTERS = 64
"""Limit of characters of a listed text."""

MAX_COLUMN_VALUES = 1 << 20
"""Limit of values of a column; of more, equally spaced ones are used."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The values of one column, or of a whole input.

    count: Number of values.
    missing: Number of values that are NaN, infinite or an empty text; default 0.
    distinct: Number of different values among the others; default 0.
    shares: The share of each listed value, most frequent first; default none.
    quantiles: Quantiles at 0, 5, …, 100 %; default none: all values are missing. For text they are
        of the length in characters; true counts as 1, and false as 0.
    mean, deviation: The mean and the standard deviation of the same numbers; default 0.
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

    datatype: The input's datatype.
    shape: The shape of all rows together.
    columns: One distribution per column of an input with two axes, or one for all values.
    """

    datatype: str
    shape: tuple[int, ...]
    columns: tuple[Distribution, ...]


def describe_features(inputs: Arrays) -> dict[str, InputDistribution]:
    """Return the distribution of each input's values. Axis 0 holds the rows."""
    return {name: _describe(array) for name, array in inputs.items()}


def _describe(array: Array) -> InputDistribution:
    if array.ndim == 2 and array.shape[1] <= MAX_COLUMNS:
        columns = [array[:, place] for place in range(array.shape[1])]
    else:
        columns = [array.reshape(-1)]
    datatype = BY_DTYPE[array.dtype].name
    return InputDistribution(datatype, array.shape, tuple(_distribution(one) for one in columns))


def _distribution(values: Array) -> Distribution:
    count = len(values)
    if count > MAX_COLUMN_VALUES:
        values = values[:: -(-count // MAX_COLUMN_VALUES)]
    if BY_DTYPE[values.dtype].kind == "text":
        present = np.array([text for text in values if text], np.object_)
        listed, of = _shares(present, 0), np.array([len(text) for text in present], np.float64)
    else:
        numbers = values.astype(np.float64)
        of = numbers[np.isfinite(numbers)]
        listed = _shares(of, MAX_SHARES)
    distinct, shares = listed
    missing = len(values) - len(of)
    scaled = round(missing * count / len(values)) if len(values) else 0
    if not len(of):
        return Distribution(count, scaled)
    with np.errstate(over="ignore", invalid="ignore"):  # the largest floats overflow
        quantiles = np.quantile(of, np.linspace(0, 1, QUANTILES))
        figures = np.nan_to_num([*quantiles, of.mean(), of.std()]).tolist()
    return Distribution(count, scaled, distinct, shares, tuple(figures[:-2]), *figures[-2:])


def _shares(values: Array | NDArray[np.float64], most: int) -> tuple[int, dict[str, float]]:
    """Return the number of different values, and the shares of those to be listed.

    most: With more different values, the list is empty; 0: list the most frequent ones.
    """
    found, counts = np.unique(values, return_counts=True)
    if most and len(found) > most:
        return len(found), {}
    order = np.argsort(-counts, kind="stable")[:MAX_SHARES]
    shares: dict[str, float] = {}
    for place in order:
        value = found[place]
        written = value[:MAX_LISTED_CHARACTERS] if isinstance(value, str) else f"{value:.9g}"
        shares[written] = shares.get(written, 0.0) + float(counts[place]) / len(values)
    return len(found), shares
