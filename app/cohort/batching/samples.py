"""Samples of requests that shared a run, so that they can be run again alone."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cohort.batching.stacking import Outputs
from cohort.tensors import Arrays


class Sample(NamedTuple):
    """A request that shared a run.

    inputs: Its inputs.
    answer: Its outputs.
    place: Its place in the run, counted in requests of the same number of rows.
    together: The number of such requests in a run of that size.
    """

    inputs: Arrays
    answer: Outputs
    place: int
    together: int


class Sampler(Protocol):
    """Takes samples of served requests.

    due: When the next sample is due, in seconds on the monotonic clock.
    """

    due: float

    def take(self, sample: Sample) -> None:
        """Take a sample; called on the event loop."""


def choose_below(count: int, moment: float) -> int:
    """Return a number below `count`, chosen by the current time in seconds."""
    return int(moment * 1e6) % count


def sample_row(inputs: Arrays, answer: Outputs, rows: int, moment: float) -> Sample:
    """Copy a row of a run of several requests that were coalesced along axis 0."""
    row = choose_below(rows, moment)
    return Sample(
        {name: array[row : row + 1].copy() for name, array in inputs.items()},
        [output[row : row + 1].copy() for output in answer],
        row,
        rows,
    )
