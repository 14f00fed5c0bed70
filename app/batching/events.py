"""What a batcher tells of its work, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Ran(NamedTuple):
    """One run of the model. `waits` says how many seconds its requests had queued, and how many of
    them for as long; `seconds` are the run's.

    `padding` is the share of padding among the elements of padded inputs, 0 where none was needed.
    """

    rows: int
    requests: int
    seconds: float
    waits: Sequence[tuple[float, int]]
    padding: float = 0.0


class Left(NamedTuple):
    """A caller left while `queued` or `running`."""

    stage: str


class BatchingOff(NamedTuple):
    """The model's outputs showed, under load, that its requests cannot share a run."""

    reason: str


BatchObserver = Callable[[Ran | Left | BatchingOff], None]
