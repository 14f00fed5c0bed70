"""Measure the differences of one output of two models, over any number of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cohort.comparing import Measured, Numbers, Pair, choose_otherwise, measure_arrays
from cohort.repository import StepDifference
from cohort.tensors import Array
from cohort_prepare.evaluating.cases import kind_of


@dataclass(slots=True)
class Differences:
    """Differences of one output of two models, over all runs.

    values, unequal: Values compared, and values that are not equal.
    finite: Values of the first model that are finite.
    max_absolute, max_relative: Largest differences of floats, infinite if NaN or infinity is on one
        side only; None for other types, such as labels.
    argmax_same, argmax_of: For scores, places with the same argmax, and all places.
    size: Largest magnitude of finite floats on either side.
    noise: Sum of squared differences of finite floats.
    least_cosine: Smallest cosine of a row of floats; 1 if rows are single numbers.
    """

    values: int = 0
    unequal: int = 0
    finite: int = 0
    max_absolute: float | None = None
    max_relative: float | None = None
    argmax_same: int = 0
    argmax_of: int = 0
    size: float = 0.0
    noise: float = 0.0
    least_cosine: float = 1.0
    _products: Numbers = field(default_factory=lambda: np.zeros(3))
    _cosines: float = 0.0
    _rows: int = 0

    @property
    def cosine(self) -> float | None:
        """Cosine of all finite floats as one vector; None without any."""
        return None if self.max_absolute is None else float(cosines(self._products))

    @property
    def row_cosine(self) -> float | None:
        """Mean cosine of rows; of all values as one vector if rows are single numbers."""
        return self._cosines / self._rows if self._rows else self.cosine

    @property
    def power(self) -> float:
        """Sum of the first model's squared finite floats."""
        return float(self._products[1])

    @property
    def argmax_agreement(self) -> float | None:
        """Share of places with the same argmax; None if the output is not scores."""
        return self.argmax_same / self.argmax_of if self.argmax_of else None

    def add(self, measured: Measured) -> None:
        """Add a run; axis 0 is the rows."""
        self.values += measured.unequal.size
        self.unequal += int(np.count_nonzero(measured.unequal))
        if measured.kind != "float" or measured.size is None:
            self.finite += measured.unequal.size
            return
        self.max_absolute, self.max_relative = self.max_absolute or 0.0, self.max_relative or 0.0
        if not measured.unequal.size:
            return
        absolute, relative = measured.largest()
        self.max_absolute = max(self.max_absolute, float(absolute.max()))
        self.max_relative = max(self.max_relative, float(relative.max()))
        self.size = max(self.size, float(measured.size.max()))
        self._add_directions(measured)
        if is_scores(measured):
            otherwise = choose_otherwise(measured)
            self.argmax_same += int(np.count_nonzero(~otherwise))
            self.argmax_of += otherwise.size

    def _add_directions(self, measured: Measured) -> None:
        one, other = (np.asarray(side, np.float64) for side in (measured.expected, measured.got))
        self.finite += int(np.count_nonzero(np.isfinite(one)))
        finite = np.isfinite(one) & np.isfinite(other)
        one, other = (np.where(finite, side, 0).reshape(len(side), -1) for side in (one, other))
        with np.errstate(over="ignore", invalid="ignore"):
            pairs = (one * other, one * one, other * other)
            products = np.stack([pair.sum(1) for pair in pairs], -1)
            self._products += products.sum(0)
            self.noise += float(((one - other) ** 2).sum())
        if one.shape[1] > 1:
            found = cosines(products)
            self._rows, self._cosines = self._rows + len(found), self._cosines + float(found.sum())
            self.least_cosine = min(self.least_cosine, float(found.min()))


def cosines(products: Numbers) -> Numbers:
    """Return cosines from dot products and squared norms, along the last axis.

    They are 1 for equal vectors, including zeros; 0 if only one is zero, or a square overflows.
    """
    both, one, other = np.moveaxis(products, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.nan_to_num(both / (np.sqrt(one) * np.sqrt(other)), posinf=0.0, neginf=0.0)
    return np.where((both == one) & (both == other), 1.0, np.clip(found, -1.0, 1.0))


def is_scores(measured: Measured) -> bool:
    """Return True if the array has an axis of scores after the rows."""
    return measured.got.ndim > 1 and measured.got.shape[-1] > 1 and measured.got.size > 0


def measure_rows(expected: Array, got: Array, rows: int | None = None) -> Measured:
    """Measure two arrays of the same shape and kind; axis 0 is the rows.

    rows: Number of rows; an array of another length is a single row. Default None: axis 0, if there
        is one.
    """
    count = expected.shape[:1] if rows is None else (rows,)
    by_row = expected.ndim > 0 and expected.shape[:1] == count
    return measure_arrays(*(side if by_row else side[None] for side in (expected, got)))


def measure_pairs(pairs: Iterable[Pair]) -> dict[str, Differences]:
    """Return differences by output, over all pairs, for outputs with equal shapes and kinds."""
    found: dict[str, Differences] = {}
    for pair in pairs:
        add_pair(found, pair)
    return found


def add_pair(found: dict[str, Differences], pair: Pair) -> None:
    """Add a pair by output, as `measure_pairs` does."""
    for name, one in pair.expected.items():
        other = pair.got.get(name)
        if other is not None and (one.shape, kind_of(one)) == (other.shape, kind_of(other)):
            found.setdefault(name, Differences()).add(measure_rows(one, other))


def largest(outputs: Iterable[Differences]) -> StepDifference:
    """Return the largest differences of all outputs; 0 without floats."""
    several = list(outputs)
    return StepDifference(
        max((one.max_absolute or 0.0 for one in several), default=0.0),
        max((one.max_relative or 0.0 for one in several), default=0.0),
    )
