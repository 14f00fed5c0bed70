"""Runs of at least so many rows: fewer are filled up, and the rest is dropped again.

Some devices prepare anew whenever a run has another number of rows than the one before, which takes
many times as long as the run (decision 0046). And some kernels round a row that is alone in
its run in another way than one in company.
"""

from __future__ import annotations

from typing import Any

from cohort.batching.batch import Run
from cohort.batching.stacking import FIRST_AXIS, Joined, Outputs, RowsDoNotFollow, Stacking
from cohort.tensors import Arrays


class FilledRuns:
    """Runs of so many `rows` wherever there would be fewer: the last one, over and over.

    A run of more rows, of none, or of inputs that differ in theirs is left as it is. One whose
    outputs turn out not to have a row for each row of input is run again, and is the last.

    run: Runs the model; its rows must not influence each other.
    rows: How many.
    stacking: Where rows are; default: along axis 0.
    """

    __slots__ = ("_follow", "_rows", "_run", "_stacking")

    def __init__(self, run: Run, rows: int, stacking: Stacking = FIRST_AXIS) -> None:
        self._run, self._rows, self._stacking = run, rows, stacking
        self._follow = True

    def run(self, feeds: Arrays, control: Any) -> Outputs:
        """Run the model, and give the outputs of the rows that were asked for."""
        rows, stacking = self._rows, self._stacking
        own, key = stacking.rows_and_key(feeds)
        if key is None or not 0 < own < rows or not self._follow:
            return self._run(feeds, control)
        filled = stacking.fill(feeds, rows)
        outputs = self._run(filled, control)
        try:
            return stacking.split(outputs, [own, rows - own], Joined(filled))[0]
        except RowsDoNotFollow:
            self._follow = False
            return self._run(feeds, control)
