"""How far a quantized model's outputs are from the original's, counted a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from cohort.comparing import Pair, Tolerance, compare, explain
from cohort.errors import quoted_names
from cohort.tensors import BY_DTYPE, Array, Arrays, TensorSpec
from cohort_prepare.evaluating.cases import fit_labels
from cohort_prepare.failures import Misused

PROBABILITY = 0.01
"""How far the sum of a row's scores may be from 1 where they are probabilities."""


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """Rows by who was right about them.

    both: Right before and after.
    lost: Right before and wrong after.
    gained: Wrong before and right after.
    """

    both: int
    lost: int
    gained: int


@dataclass(frozen=True, slots=True)
class Quality:
    """What became of the outputs.

    rows: How many were compared.
    cosine: Of the two models' outputs for a row, on average.
    least_cosine: The smallest of them.
    noise: The power of the difference as a share of the outputs'.
    max_absolute, max_relative: The largest differences of all elements.
    decision: The output that decides; default "": none is known to.
    changed: Rows that are decided otherwise; default 0.
    labels: What is right by the labels; default None: there are none.
    broken: Why the outputs cannot be used; default "": they can.
    """

    rows: int
    cosine: float = 1.0
    least_cosine: float = 1.0
    noise: float = 0.0
    max_absolute: float = 0.0
    max_relative: float = 0.0
    decision: str = ""
    changed: int = 0
    labels: LabelCounts | None = None
    broken: str = ""


class Tally:
    """Counts towards a Quality.

    outputs: The model's outputs.
    labels: The right answer for each row, in order; default None: not known.
    decides: Whether what the rows decide means something; default True.
    """

    def __init__(
        self,
        outputs: Sequence[TensorSpec],
        labels: Array | None = None,
        *,
        decides: bool = True,
    ) -> None:
        self._specs = {spec.name: spec for spec in outputs}
        self._labels = labels
        self._decision: str | None = None if decides else ""
        self._rows = self._changed = 0
        self._both = self._lost = self._gained = 0
        self._cosines, self._least = 0.0, 1.0
        self._signal = self._noise = 0.0
        self._absolute = self._relative = 0.0
        self._broken = ""

    def add(self, expected: Arrays, got: Arrays) -> None:
        """Compare the outputs for a batch. Raises Misused where labels do not go with them."""
        rows = max((len(one) for one in expected.values() if one.ndim), default=1)
        pair = Pair(expected, got)
        self._note_differences(pair)
        if self._broken:
            return
        cosine, signal, noise = _directions(pair, rows)
        self._cosines += float(cosine.sum())
        self._least = min(self._least, float(cosine.min(initial=1.0)))
        self._signal, self._noise = self._signal + signal, self._noise + noise
        if self._decision is None:
            self._decision = self._find_decision(expected, rows)
        if self._decision:
            before, after = (self._decide(side[self._decision]) for side in pair)
            self._changed += int(np.count_nonzero(before != after))
            self._count_right(before, after)
        self._rows += rows

    @property
    def rows(self) -> int:
        """How many were compared."""
        return self._rows

    def quality(self, *, partial: bool = False) -> Quality:
        """What was found. Raises Misused where labels are left, unless rows are, too: `partial`."""
        left = self._labels is not None and len(self._labels) > self._rows
        if self._labels is not None and left and not partial and not self._broken:
            raise Misused(f"there are {len(self._labels)} labels for {self._rows} rows")
        counts = LabelCounts(self._both, self._lost, self._gained)
        rows = max(self._rows, 1)
        return Quality(
            rows=self._rows,
            cosine=self._cosines / rows,
            least_cosine=self._least,
            noise=self._noise / self._signal if self._signal else 0.0,
            max_absolute=self._absolute,
            max_relative=self._relative,
            decision=self._decision or "",
            changed=self._changed,
            labels=None if self._labels is None else counts,
            broken=self._broken,
        )

    def _note_differences(self, pair: Pair) -> None:
        (differences,) = compare([pair], _ANY)
        for one in differences:
            absolute, relative = one.largest or 0.0, one.relative or 0.0
            if not isfinite(absolute) or (one.largest is None and _shapes_differ(pair, one.output)):
                self._broken = explain(pair, _ANY)
                return
            self._absolute = max(self._absolute, absolute)
            self._relative = max(self._relative, relative)

    def _find_decision(self, outputs: Arrays, rows: int) -> str:
        """The output that says what a row is: a class, or scores of classes."""
        for name, array in outputs.items():
            plain = BY_DTYPE[array.dtype].kind != "float"
            if plain and array.shape in {(rows,), (rows, 1)}:
                return name
        for name, array in outputs.items():
            scores = BY_DTYPE[array.dtype].kind == "float" and array.ndim == 2
            known = self._labels is not None or self._specs[name].classes
            if scores and array.shape[1] > 1 and (known or _add_up(array)):
                if self._labels is not None:
                    classes = self._specs[name].classes
                    self._labels = fit_labels(self._labels, array.shape[1], classes)
                return name
        if self._labels is not None:
            raise Misused(
                f"labels need an output with a class or scores for each row, and "
                f"{quoted_names(outputs)} have none: leave --labels out"
            )
        return ""

    def _decide(self, array: Array) -> Array:
        """The class of each row."""
        if BY_DTYPE[array.dtype].kind != "float":
            return array.reshape(-1)
        best: Array = array.astype(np.float64).argmax(-1)
        classes = self._specs[self._decision or ""].classes
        return np.asarray(classes)[best] if classes else best

    def _count_right(self, before: Array, after: Array) -> None:
        if self._labels is None:
            return
        labels = self._labels[self._rows : self._rows + len(before)]
        if len(labels) < len(before):
            raise Misused(f"there are {len(self._labels)} labels for more rows")
        right_before, right_after = (
            side.astype(str) == labels.astype(str) for side in (before, after)
        )
        self._both += int(np.count_nonzero(right_before & right_after))
        self._lost += int(np.count_nonzero(right_before & ~right_after))
        self._gained += int(np.count_nonzero(~right_before & right_after))


_ANY = Tolerance(0.0, 0.0)


def _shapes_differ(pair: Pair, output: str) -> bool:
    got = pair.got.get(output)
    return got is None or got.shape != pair.expected[output].shape


def _add_up(scores: Array) -> bool:
    """Whether scores are probabilities."""
    numbers = scores.astype(np.float64)
    return bool((numbers >= 0).all() and (np.abs(numbers.sum(1) - 1) < PROBABILITY).all())


def _directions(pair: Pair, rows: int) -> tuple[Array, float, float]:
    """The smallest cosine of each row's outputs; the power of the outputs and of the difference."""
    least = np.ones(rows)
    signal = noise = 0.0
    for name, expected in pair.expected.items():
        if BY_DTYPE[expected.dtype].kind != "float" or not expected.size:
            continue
        count = rows if expected.ndim and len(expected) == rows else 1
        one, other = (
            np.nan_to_num(side.astype(np.float64), posinf=0.0, neginf=0.0).reshape(count, -1)
            for side in (expected, pair.got[name])
        )
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        same = np.all(one == other, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            cosine = np.where(same, 1.0, np.where(lengths > 0, (one * other).sum(1) / lengths, 0.0))
        least = np.minimum(least, cosine)
        signal += float((one**2).sum())
        noise += float(((one - other) ** 2).sum())
    return least, signal, noise
