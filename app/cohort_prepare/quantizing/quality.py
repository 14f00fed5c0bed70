"""Compare a quantized model's outputs with the original's, batch by batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from cohort.comparing import Pair, Tolerance, compare, explain
from cohort.tensors import Array, Arrays, TensorSpec
from cohort_prepare.evaluating.accuracy import Decision, LabelCount, PairedAccuracy, find_decision
from cohort_prepare.evaluating.differences import Differences, largest, measure_rows
from cohort_prepare.failures import Misused


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of the outputs.

    rows: Rows compared.
    cosine: Mean cosine similarity of the two models' values per row, or of a column if rows are
        single numbers. For several outputs, the lowest.
    least_cosine: Smallest cosine of a row.
    noise: Power of the difference as a share of the outputs' power.
    max_absolute, max_relative: Largest differences of floats.
    decision: Output that decides a class; default "": unknown.
    changed: Rows with another decision; default 0.
    labels: Accuracy by the labels; default None: no labels.
    broken: Reason why the outputs are unusable; default "": they are usable.
    """

    rows: int
    cosine: float = 1.0
    least_cosine: float = 1.0
    noise: float = 0.0
    max_absolute: float = 0.0
    max_relative: float = 0.0
    decision: str = ""
    changed: int = 0
    labels: PairedAccuracy | None = None
    broken: str = ""


class QualityTotals:
    """Accumulates a Quality.

    outputs: The model's outputs.
    labels: Correct answer for each row, in order; default None: unknown.
    decides: True if the rows have a meaningful class; default True.
    """

    def __init__(
        self,
        outputs: Sequence[TensorSpec],
        labels: Array | None = None,
        *,
        decides: bool = True,
    ) -> None:
        self._specs, self._labels, self._decides = outputs, labels, decides
        self._right = None if labels is None else LabelCount(labels, outputs)
        self._outputs: dict[str, Differences] = defaultdict(Differences)
        self._decision: Decision | None = None
        self._rows = self._changed = 0
        self._broken = ""

    def add(self, expected: Arrays, got: Arrays) -> None:
        """Compare the outputs of a batch. Raises Misused if the labels do not fit them."""
        rows = max((len(one) for one in expected.values() if one.ndim), default=1)
        (found,) = compare([Pair(expected, got)], _ANY)
        if any(one.largest == inf or _shapes_differ(expected, got, one.output) for one in found):
            self._broken = explain(Pair(expected, got), _ANY)
        if self._broken:
            return
        for name, one in expected.items():
            self._outputs[name].add(measure_rows(one, got[name], rows))
        if self._right is not None:
            self._right.add(self._rows, rows, expected, got)
            self._decision = self._right.decision
        elif self._decides and not self._rows:
            self._decision = find_decision(expected, rows, self._specs)
        if self._decision is not None:
            before, after = (self._decision.read(side) for side in (expected, got))
            self._changed += int(np.count_nonzero(before != after))
        self._rows += rows

    @property
    def rows(self) -> int:
        """Number of rows compared."""
        return self._rows

    def quality(self, *, partial: bool = False) -> Quality:
        """Return the result. Raises Misused if labels remain, unless rows do as well: `partial`."""
        left = self._labels is not None and len(self._labels) > self._rows
        if self._labels is not None and left and not partial and not self._broken:
            raise Misused(f"there are {len(self._labels)} labels for {self._rows} rows")
        outputs = self._outputs.values()
        cosines = [one.row_cosine for one in outputs if one.row_cosine is not None]
        power, off = sum(one.power for one in outputs), largest(outputs)
        return Quality(
            rows=self._rows,
            cosine=min(cosines, default=1.0),
            least_cosine=min((one.least_cosine for one in outputs), default=1.0),
            noise=sum(one.noise for one in outputs) / power if power else 0.0,
            max_absolute=off.max_absolute,
            max_relative=off.max_relative,
            decision=self._decision.output if self._decision else "",
            changed=self._changed,
            labels=self._right.total() if self._right else None,
            broken=self._broken,
        )


_ANY = Tolerance(0.0, 0.0)


def _shapes_differ(expected: Arrays, got: Arrays, output: str) -> bool:
    return output not in got or got[output].shape != expected[output].shape
