"""What happens to rollouts, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cohort.comparing import OutputDifference


class RolledBack(NamedTuple):
    """A version receives no more traffic.

    model, version: The version that was rolled back.
    variants: Its variants; empty where only the shadow was stopped.
    shadow: Whether its shadow was stopped.
    reason: The limit that was broken, "operator" or "unreadable".
    detail: The reason as a sentence.
    decided_here: Whether this process decided it, or read it from the state folder.
    incident: Names it, alike in processes that decide it at once; default "".
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
    by: Who cleared it and when, as another process recorded it; default "": this one did, or it is
        not known.
    """

    model: str
    version: int
    variants: Sequence[str]
    by: str = ""


class RampMoved(NamedTuple):
    """A ramp took a step, or has soaked at the last one.

    model, version, variant: What gets more callers.
    step: The step, from 0; `steps` where it is over.
    steps: How many there are.
    percent: The variant's share of callers.
    run: Names this run of the ramp, alike in every process.
    decided_here: Whether this process moved it, or read it from the state folder.
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
    disagrees: Whether any output disagrees, or the shadow failed.
    outputs: The differences by output; empty where the shadow failed.
    """

    model: str
    version: int
    disagrees: bool
    outputs: Sequence[OutputDifference]


class Dropped(NamedTuple):
    """Copied requests were dropped: their queue was full, or no slot was idle in time.

    model, version: The shadow's.
    copies: How many; default 1.
    """

    model: str
    version: int
    copies: int = 1


RolloutEvent = RolledBack | Restored | RampMoved | Compared | Dropped
RolloutObserver = Callable[[RolloutEvent], None]
