"""How often a source and a model are right, row by row, so that chance is told from difference."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, sqrt

import numpy as np

from cohort.comparing import Flags
from cohort.errors import available, quoted
from cohort.tensors import Array, Arrays
from cohort_prepare.evaluating.cases import fit_labels
from cohort_prepare.failures import Misused

Z = 1.96
"""Of an interval that holds the true share in 95 of 100 cases."""


@dataclass(frozen=True, slots=True)
class PairedAccuracy:
    """Of so many rows, how many both had right, only one of the two, and none."""

    both: int
    only_source: int
    only_model: int
    neither: int

    @property
    def rows(self) -> int:
        """All of them."""
        return self.both + self.only_source + self.only_model + self.neither

    @property
    def source(self) -> float:
        """The share that the source had right."""
        return (self.both + self.only_source) / self.rows if self.rows else 0.0

    @property
    def model(self) -> float:
        """The share that the model had right."""
        return (self.both + self.only_model) / self.rows if self.rows else 0.0

    @property
    def chance(self) -> float:
        """How likely it is that two models that are equally good differ as much or more.

        The exact McNemar test: https://en.wikipedia.org/wiki/McNemar%27s_test
        """
        one, other = sorted((self.only_source, self.only_model))
        tries = one + other
        if tries > 1000:  # as large, it is normal
            return float(np.exp(-((other - one) ** 2) / tries / 2))
        return float(min(1.0, 2 * sum(comb(tries, k) for k in range(one + 1)) / 2**tries))


def interval(share: float, rows: int) -> tuple[float, float]:
    """Where the true share is, in 95 of 100 cases (Wilson's interval)."""
    if not rows:
        return 0.0, 1.0
    center = (share + Z * Z / (2 * rows)) / (1 + Z * Z / rows)
    spread = Z * sqrt(share * (1 - share) / rows + Z * Z / (4 * rows * rows)) / (1 + Z * Z / rows)
    return max(0.0, min(center - spread, share)), min(1.0, max(center + spread, share))


def right(outputs: Arrays, labels: Array, *, classes: tuple[object, ...] = ()) -> Flags:
    """For each row whether the answer is its label.

    The answer is the first output of whole numbers or text with one for each row, otherwise the
    argmax of the first output of scores, by `classes` where the model names them. Raises Misused
    where there is none.
    """
    rows = len(labels)
    for array in outputs.values():
        if array.size == rows and array.ndim and array.dtype.kind != "f":
            return _equal(array.reshape(-1), labels)
    for array in outputs.values():
        if array.ndim == 2 and len(array) == rows and array.dtype.kind == "f":
            labels = fit_labels(labels, max(2, array.shape[1]), classes)
            if array.shape[1] == 1:
                return _equal((array[:, 0] > 0.5).astype(np.int64), labels)  # type: ignore[operator]
            best = array.argmax(1)
            if len(classes) == array.shape[1]:
                return _equal(np.array([classes[place] for place in best], object), labels)
            return _equal(best, labels)
    raise Misused(
        f"no output can be held against labels: none has one whole number, text or row of scores "
        f"for each of {rows} rows{available(map(quoted, outputs))}"
    )


def _equal(answers: Array, labels: Array) -> Flags:
    if answers.dtype.kind in "iub" and labels.dtype.kind in "iufb":
        return np.asarray(answers == labels, bool)
    return np.asarray(answers.astype(str) == labels.astype(str), bool)
