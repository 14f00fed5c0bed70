"""Runs that all have the same number of rows: fewer are filled up, and the rest is dropped again.

Some devices prepare anew whenever a run has another number of rows than the one before, which takes
many times as long as the run (docs/decisions/0046).
"""

from __future__ import annotations

from typing import Any

from app.batching.batch import Run
from app.batching.policy import rows_and_key
from app.batching.stacking import Outputs, rows_follow
from app.tensors import Arrays


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
        own, key = rows_and_key(feeds)
        if key is None or not 0 < own < rows or not self._follow:
            return self._run(feeds, control)
        places = range(rows)  # those beyond its own are taken from the last one
        filled = {name: array.take(places, 0, mode="clip") for name, array in feeds.items()}
        outputs = self._run(filled, control)
        self._follow = all(rows_follow(output, rows) for output in outputs)
        return [output[:own] for output in outputs] if self._follow else self._run(feeds, control)
