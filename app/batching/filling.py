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


def fill_up(run: Run, rows: int) -> Run:
    """Let `run` have so many `rows` wherever it would have fewer, the last of them over and over.

    run: Runs the model; its rows must not influence each other.

    A run of more rows, of none, or of inputs that differ in theirs is left as it is. One whose
    outputs turn out not to have a row for each row of input is run again, and is the last.
    """
    follow = True

    def run_filled(feeds: Arrays, control: Any) -> Outputs:
        nonlocal follow
        own = {len(array) if array.ndim else 0 for array in feeds.values()}
        count = own.pop() if len(own) == 1 else 0
        if not (follow and 0 < count < rows):
            return run(feeds, control)
        outputs = run({name: _filled(array, rows) for name, array in feeds.items()}, control)
        follow = all(rows_follow(output, rows) for output in outputs)
        if not follow:
            return run(feeds, control)
        return [output[:count] for output in outputs]

    return run_filled


def _filled(array: Array, rows: int) -> Array:
    feed = np.empty((rows, *array.shape[1:]), array.dtype)
    feed[: len(array)] = array
    feed[len(array) :] = array[-1:]
    return feed
