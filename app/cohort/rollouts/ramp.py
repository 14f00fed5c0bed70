"""A ramp: how a variant's share of callers grows, step by step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

MAX_STEPS = 100
"""Of one ramp."""

KEEP_SECONDS = 30.0
"""How much more soak time there must be before it is recorded; a restart may lose as much."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """The schedule of one variant of a rollout.

    variant: The variant's name.
    steps: Its share of callers at each step, in percent; each larger than the one before.
    soak: Seconds for which it has to serve at each step before the next one, in the same order.
    auto_promote: Whether it gets all callers after the last step; default False.
    """

    variant: str
    steps: tuple[float, ...]
    soak: tuple[float, ...]
    auto_promote: bool = False

    def percent(self, step: int) -> float:
        """The share of callers at a step, the first of which is 0; past the last one it is over."""
        if step < len(self.steps):
            return self.steps[step]
        return 100.0 if self.auto_promote else self.steps[-1]

    def after(self, progress: RampProgress) -> RampProgress | None:
        """The next step, where the variant has soaked enough for it."""
        if progress.step >= len(self.steps) or progress.soaked < self.soak[progress.step]:
            return None
        return RampProgress(progress.run, progress.step + 1, 0.0)

    def believe(self, recorded: RampProgress) -> RampProgress:
        """What is recorded, or a new run where the ramp has no such step."""
        return recorded if recorded.step <= len(self.steps) else recorded.restarted()


class RampProgress(NamedTuple):
    """How far a ramp is. The greater of two is the later: processes agree on that.

    run: Which of its runs, from 1: each clear begins a new one, at the first step.
    step: The step, from 0; the number of steps where it is over.
    soaked: The seconds for which the variant has served at this step.
    """

    run: int
    step: int
    soaked: float

    def restarted(self) -> RampProgress:
        """At the first step, and later than this."""
        return RampProgress(self.run + 1, 0, 0.0)

    def is_worth_recording(self, recorded: RampProgress | None) -> bool:
        """Whether the record is behind this by a step, or by much."""
        if recorded is None or self[:2] > recorded[:2]:
            return True
        return self[:2] == recorded[:2] and self.soaked >= recorded.soaked + KEEP_SECONDS


FIRST_STEP = RampProgress(1, 0, 0.0)

RampKey = str
"""A ramp of a model: its version, and a digest of the baseline's version and the steps."""

RecordedRamps = Mapping[str, Mapping[RampKey, RampProgress]]
"""By model."""
