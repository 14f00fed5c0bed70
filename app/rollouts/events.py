"""What happens to rollouts, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.comparing import OutputDifference


class RolledBack(NamedTuple):
    """Variants of a version get no traffic any more, by this process's decision or another's.

    `shadow` is whether its shadow runs ended, too.
    """

    model: str
    version: int
    variants: Sequence[str]
    shadow: bool
    reason: str
    detail: str
    ours: bool


class Restored(NamedTuple):
    """A version's decision ended: an operator cleared it, or the version left the rollout."""

    model: str
    version: int
    variants: Sequence[str]


class Compared(NamedTuple):
    """A shadow version answered a copy; without outputs where it failed to."""

    model: str
    version: int
    disagrees: bool
    outputs: Sequence[OutputDifference]


class Dropped(NamedTuple):
    """A copy was given up for want of room or time."""

    model: str
    version: int


RolloutEvent = RolledBack | Restored | Compared | Dropped
Observer = Callable[[RolloutEvent], None]
