"""Requests that shared a run, taken now and then, so that they can be run again alone."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cohort.batching.stacking import Outputs
from cohort.tensors import Arrays


class Sample(NamedTuple):
    """A request that shared a run.

    inputs: Its own.
    answer: Its outputs.
    place: Its place in the run, counted in requests of as many rows.
    together: How many such requests are a run of that size.
    """

    inputs: Arrays
    answer: Outputs
    place: int
    together: int


class Sampler(Protocol):
    """Takes samples of what is served.

    due: From when another one is wanted, in seconds on the monotonic clock.
    """

    due: float

    def take(self, sample: Sample) -> None:
        """Take a sample; called on the event loop."""


def choose_below(count: int, moment: float) -> int:
    """Any number below `count`, by when it is asked for, in seconds on the monotonic clock."""
    return int(moment * 1e6) % count


def sample_row(inputs: Arrays, answer: Outputs, rows: int, moment: float) -> Sample:
    """Any row of a run of several requests that were coalesced along axis 0, copied."""
    row = choose_below(rows, moment)
    return Sample(
        {name: array[row : row + 1].copy() for name, array in inputs.items()},
        [output[row : row + 1].copy() for output in answer],
        row,
        rows,
    )
