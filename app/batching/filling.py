"""Runs that all have the same number of rows: fewer are filled up, and the rest is dropped again.

Some devices prepare anew whenever a run has another number of rows than the one before, which takes
many times as long as the run (docs/decisions/0046).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from app.batching.batch import Run
from app.batching.stacking import Outputs, rows_follow
from app.tensors import Array, Arrays


class FilledRuns:
    """Runs of so many `rows` wherever there would be fewer: the last one, over and over.

    A run of more rows, of none, or of inputs that differ in theirs is left as it is. One whose
    outputs turn out not to have a row for each row of input is run again, and is the last.

    run: Runs the model; its rows must not influence each other.
    """

    __slots__ = ("_follow", "_rows", "_run")

    def __init__(self, run: Run, rows: int) -> None:
        self._run, self._rows = run, rows
        self._follow = True

    def run(self, feeds: Arrays, control: Any) -> Outputs:
        """Run the model, and give the outputs of the rows that were asked for."""
        rows = self._rows
        own = {len(array) if array.ndim else 0 for array in feeds.values()}
        count = own.pop() if len(own) == 1 else 0
        if not (self._follow and 0 < count < rows):
            return self._run(feeds, control)
        filled = {name: _filled(array, rows) for name, array in feeds.items()}
        outputs = self._run(filled, control)
        self._follow = all(rows_follow(output, rows) for output in outputs)
        return [output[:count] for output in outputs] if self._follow else self._run(feeds, control)


def _filled(array: Array, rows: int) -> Array:
    feed = np.empty((rows, *array.shape[1:]), array.dtype)
    feed[: len(array)] = array
    feed[len(array) :] = array[-1:]
    return feed
