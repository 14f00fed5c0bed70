"""A ramp: the growth of a variant's share of callers, step by step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

MAX_STEPS = 100
"""Maximum steps of a ramp."""

KEEP_SECONDS = 30.0
"""Additional soak time after which progress is recorded; a restart may lose this much."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """The schedule of one variant of a rollout.

    variant: The variant's name.
    steps: Its share of callers at each step, in percent, in increasing order.
    soak: Seconds that it must serve at each step before the next one, in the same order.
    auto_promote: True if it gets all callers after the last step; default False.
    """

    variant: str
    steps: tuple[float, ...]
    soak: tuple[float, ...]
    auto_promote: bool = False

    def percent(self, step: int) -> float:
        """Return the percentage of callers at a step, from 0, or after the last step."""
        if step < len(self.steps):
            return self.steps[step]
        return 100.0 if self.auto_promote else self.steps[-1]

    def after(self, progress: RampProgress) -> RampProgress | None:
        """Return the next step, if the variant has soaked long enough for it; else None."""
        if progress.step >= len(self.steps) or progress.soaked < self.soak[progress.step]:
            return None
        return RampProgress(progress.run, progress.step + 1, 0.0)

    def believe(self, recorded: RampProgress) -> RampProgress:
        """Return the recorded progress, or a new run if the ramp has no such step."""
        return recorded if recorded.step <= len(self.steps) else recorded.restarted()


class RampProgress(NamedTuple):
    """The progress of a ramp. The greater of two is the later, in all processes.

    run: The number of the run, from 1: each clear begins a new run, at the first step.
    step: The step, from 0; the number of steps after the last one.
    soaked: The seconds that the variant has served at this step.
    """

    run: int
    step: int
    soaked: float

    def restarted(self) -> RampProgress:
        """Return the first step of the next run."""
        return RampProgress(self.run + 1, 0, 0.0)

    def is_worth_recording(self, recorded: RampProgress | None) -> bool:
        """Return True if the record is a step behind, or by KEEP_SECONDS."""
        if recorded is None or self[:2] > recorded[:2]:
            return True
        return self[:2] == recorded[:2] and self.soaked >= recorded.soaked + KEEP_SECONDS


FIRST_STEP = RampProgress(1, 0, 0.0)

RampKey = str
"""A ramp of a model: its version, and a digest of the baseline's version and the steps."""

RecordedRamps = Mapping[str, Mapping[RampKey, RampProgress]]
"""Progress by model and ramp."""
