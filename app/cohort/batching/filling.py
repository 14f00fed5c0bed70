"""Runs with a minimum of rows: fewer are filled up, and the added rows are dropped again.

Some devices prepare again whenever the number of rows changes, which takes many times as long as
the run (decision 0046). Also, some kernels round a single row differently from one of several.
"""

from __future__ import annotations

from typing import Any

from cohort.batching.batch import Run
from cohort.batching.stacking import FIRST_AXIS, Joined, Outputs, RowsDoNotFollow, Stacking
from cohort.tensors import Arrays


class FilledRuns:
    """Runs with at least `rows` rows: fewer are filled up by repeating the last one.

    A run of more rows, of no rows, or of inputs with different numbers of rows is not changed. If
    the outputs do not have a row for each input row, the run is repeated unfilled, and no later run
    is filled.

    run: Runs the model; its rows must not influence each other.
    rows: The minimum of rows.
    stacking: Finds the rows; default: along axis 0.
    """

    __slots__ = ("_follow", "_rows", "_run", "_stacking")

    def __init__(self, run: Run, rows: int, stacking: Stacking = FIRST_AXIS) -> None:
        self._run, self._rows, self._stacking = run, rows, stacking
        self._follow = True

    def run(self, feeds: Arrays, control: Any) -> Outputs:
        """Run the model, and return the outputs of the original rows."""
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
