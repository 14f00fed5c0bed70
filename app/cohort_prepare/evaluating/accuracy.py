"""Compare the accuracy of two models row by row, and test if a difference may be chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, erfc, sqrt

import numpy as np

from cohort.comparing import Flags
from cohort.errors import quoted, quoted_names
from cohort.tensors import Array, Arrays, TensorSpec
from cohort_prepare.evaluating.cases import kind_of
from cohort_prepare.failures import Misused

Z = 1.96
"""For a confidence interval of 95 %."""

MAX_EXACT = 1000
"""Changed rows up to which the sign test is exact; above, it uses the normal distribution."""

PROBABILITY = 0.01
"""Tolerance for the sum of a row's probabilities."""


@dataclass(frozen=True, slots=True)
class PairedAccuracy:
    """Rows by correctness of two models, before and after a step.

    both: Both are correct.
    lost: Only the model before is correct.
    gained: Only the model after is correct.
    neither: Neither is correct.
    """

    both: int = 0
    lost: int = 0
    gained: int = 0
    neither: int = 0

    @property
    def rows(self) -> int:
        """Number of all rows."""
        return self.both + self.lost + self.gained + self.neither

    @property
    def before(self) -> float:
        """Accuracy of the model before; 0 without rows."""
        return (self.both + self.lost) / max(self.rows, 1)

    @property
    def after(self) -> float:
        """Accuracy of the model after; 0 without rows."""
        return (self.both + self.gained) / max(self.rows, 1)

    @property
    def chance(self) -> float:
        """Probability that two equally good models differ at least as much.

        McNemar's exact test: https://en.wikipedia.org/wiki/McNemar%27s_test
        """
        return min(1.0, 2 * sign_test(*sorted((self.lost, self.gained), reverse=True)))


def sign_test(lost: int, gained: int) -> float:
    """Return the probability of at least `lost` of lost + gained rows, if both are as likely."""
    changed = lost + gained
    if changed > MAX_EXACT:
        return erfc((lost - gained - 1) / sqrt(2 * changed)) / 2
    return float(sum(comb(changed, count) for count in range(lost, changed + 1)) / 2**changed)


def interval(share: float, rows: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share (Wilson's interval)."""
    if not rows:
        return 0.0, 1.0
    center = (share + Z * Z / (2 * rows)) / (1 + Z * Z / rows)
    spread = Z * sqrt(share * (1 - share) / rows + Z * Z / (4 * rows * rows)) / (1 + Z * Z / rows)
    return max(0.0, min(center - spread, share)), min(1.0, max(center + spread, share))


@dataclass(frozen=True, slots=True)
class Decision:
    """Output that decides a row's class: a class for each row, or scores of classes.

    output: Its name.
    classes: Classes of the scores; default: numbers from 0.
    level: For one score per row, the value above which the row is of the second class.
    """

    output: str
    classes: Sequence[object] = ()
    level: float = 0.5

    def read(self, outputs: Arrays) -> Array:
        """Return the class of each row: that of the largest score, the first of equal ones."""
        array = outputs[self.output]
        if kind_of(array) != "float":
            ours = array.dtype.isbuiltin != 1 and kind_of(array) == "int"  # not a type of ml_dtypes
            return array.reshape(-1).astype(np.int64) if ours else array.reshape(-1)
        scores = array.astype(np.float64)
        one = scores.shape[1] == 1
        best = (scores[:, 0] > self.level).astype(np.int64) if one else scores.argmax(1)
        named = len(self.classes) == max(2, scores.shape[1])
        return np.asarray(self.classes, object)[best] if named else best


def find_decision(
    outputs: Arrays, rows: int, specs: Sequence[TensorSpec], labels: Array | None = None
) -> Decision | None:
    """Return the first output with a class for each row, else the first with scores, or None.

    specs: The model's outputs, which may name the classes of scores.
    labels: Correct answers; default None: unknown. A single score per row, or scores without
        classes that do not sum to 1, are a decision only with labels.
    """
    for name, array in outputs.items():
        if kind_of(array) != "float" and array.size == rows and array.shape[:1] == (rows,):
            return Decision(name)
    known = {spec.name: spec.classes for spec in specs}
    others = next((one for one in known.values() if one), ())  # output names may differ
    for name, array in outputs.items():
        if kind_of(array) != "float" or array.ndim != 2 or len(array) != rows:
            continue
        classes, scores = known.get(name, others), array.astype(np.float64)
        shares = bool(((scores >= 0) & (scores <= 1 + PROBABILITY)).all())
        if scores.shape[1] == 1 and _fit(labels, 2, classes):
            return Decision(name, classes, 0.5 if shares else 0.0)
        adds_up = shares and bool((np.abs(scores.sum(1) - 1) < PROBABILITY).all())
        if scores.shape[1] > 1 and (labels is not None or classes or adds_up):
            return Decision(name, classes)
    return None


class LabelCount:
    """Counts correct answers of two models, in batches.

    labels: Correct answer for each row, in order.
    specs: The model's outputs, which may name the classes of scores.
    """

    def __init__(self, labels: Array, specs: Sequence[TensorSpec]) -> None:
        self._labels, self._specs = _whole(labels), specs
        self._counts = np.zeros(4, np.int64)
        self.decision: Decision | None = None

    def add(self, start: int, rows: int, before: Arrays, after: Arrays | None) -> None:
        """Add the answers to `rows` rows from `start` on; None if the second model failed.

        Raises Misused if the labels do not fit.
        """
        if start + rows > len(self._labels):
            raise Misused(f"there are more rows than the {len(self._labels)} labels")
        self.decision = self.decision or self._find(before, rows)
        labels = self._labels[start : start + rows]
        wrong = [~_right(side, self.decision, labels) for side in (before, after)]
        self._counts += np.bincount(2 * wrong[0] + wrong[1], minlength=4)

    def _find(self, outputs: Arrays, rows: int) -> Decision:
        found = find_decision(outputs, rows, self._specs, self._labels)
        if found is None:
            raise Misused(
                f"labels need an output with a class or scores for each row; "
                f"{quoted_names(outputs)} have neither: remove --labels"
            )
        if kind_of(outputs[found.output]) == "float":
            columns = max(2, outputs[found.output].shape[1])
            self._labels = fit_labels(self._labels, columns, found.classes)
        return found

    def total(self) -> PairedAccuracy:
        """Return the counts of all rows."""
        return PairedAccuracy(*self._counts.tolist())


def _right(outputs: Arrays | None, decision: Decision, labels: Array) -> Flags:
    if outputs is None or decision.output not in outputs:
        return np.zeros(len(labels), bool)
    answers = decision.read(outputs)
    if answers.dtype.kind in "iub" and labels.dtype.kind in "iufb":
        return np.asarray(answers == labels, bool)
    return np.asarray(answers.astype(str) == labels.astype(str), bool)


def fit_labels(labels: Array, columns: int, classes: Sequence[object] = ()) -> Array:
    """Convert labels to the classes of score columns, or to column numbers from 0.

    classes: Classes of the columns, if the model names them. Labels may also be column numbers.

    Raises Misused if a label is neither.
    """
    names = [str(one) for one in classes] if len(classes) == columns else []
    numbers = [str(place) for place in range(columns)]
    labels = labels.astype(np.int64) if labels.dtype == bool and not names else _whole(labels)
    texts = labels.astype(str)
    found = set(np.unique(texts).tolist())
    if found <= set(names or numbers):
        return labels
    if names and found <= set(numbers):
        return np.asarray([classes[int(one)] for one in texts], object)
    odd = min(found - set(names or numbers))
    wanted = quoted_names(names) if names else f"the numbers 0 to {columns - 1}"
    raise Misused(f"label {quoted(odd)} must be one of the model's {columns} classes: {wanted}")


def _fit(labels: Array | None, columns: int, classes: Sequence[object]) -> bool:
    try:
        return labels is not None and len(fit_labels(labels, columns, classes)) == len(labels)
    except Misused:
        return False


def _whole(labels: Array) -> Array:
    """Convert floats to integers if all are whole."""
    if labels.dtype.kind != "f":
        return labels
    numbers = labels.astype(np.float64)
    whole = (numbers == np.rint(numbers)) & (np.abs(numbers) <= 2**53)
    return numbers.astype(np.int64) if whole.all() else labels
