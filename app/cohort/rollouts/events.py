"""Events of rollouts, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cohort.comparing import OutputDifference


class RolledBack(NamedTuple):
    """A version receives no more traffic.

    model, version: The version that was rolled back.
    variants: Its variants; empty if only the shadow was stopped.
    shadow: True if its shadow was stopped.
    reason: The limit that was broken, "operator" or "unreadable".
    detail: The reason as a sentence.
    decided_here: True if this process decided it; False if it was read from the state folder.
    incident: An id that is equal in all processes that decide it at once; default "".
    """

    model: str
    version: int
    variants: Sequence[str]
    shadow: bool
    reason: str
    detail: str
    decided_here: bool
    incident: str = ""


class Restored(NamedTuple):
    """A decision about a version ended: an operator cleared it, or it left the rollout.

    variants: The variants of the version that receive traffic again.
    by: The process that cleared it and the time, from the record; default "": this process, or
        unknown.
    """

    model: str
    version: int
    variants: Sequence[str]
    by: str = ""


class RampMoved(NamedTuple):
    """A ramp moved to a step, or has soaked at the last one.

    model, version, variant: The variant that gets more callers.
    step: The step, from 0; `steps` after the last one.
    steps: The number of steps.
    percent: The variant's share of callers.
    run: An id of this run of the ramp, equal in all processes.
    decided_here: True if this process moved it; False if it was read from the state folder.
    """

    model: str
    version: int
    variant: str
    step: int
    steps: int
    percent: float
    run: str
    decided_here: bool


class Compared(NamedTuple):
    """The shadow's outputs for a copied request were compared.

    model, version: The shadow's.
    disagrees: True if any output disagrees, or the shadow failed.
    outputs: The differences by output; empty if the shadow failed.
    """

    model: str
    version: int
    disagrees: bool
    outputs: Sequence[OutputDifference]


class Dropped(NamedTuple):
    """Copied requests were dropped: their queue was full, or no slot was idle in time.

    model, version: The shadow's.
    copies: The number of copies; default 1.
    """

    model: str
    version: int
    copies: int = 1


RolloutEvent = RolledBack | Restored | RampMoved | Compared | Dropped
RolloutObserver = Callable[[RolloutEvent], None]
