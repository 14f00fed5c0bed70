"""What happens to rollouts, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.comparing import OutputDifference


class RolledBack(NamedTuple):
    """A version gets no traffic any more: by this process's decision (`ours`) or another's.

    `shadow` is whether its shadow was stopped, too; `variants` may be empty then.
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
    """The shadow's outputs for a copy were compared; `outputs` is empty where it failed."""

    model: str
    version: int
    disagrees: bool
    outputs: Sequence[OutputDifference]


class Dropped(NamedTuple):
    """A copy was given up: its queue was full, or no slot was idle in time."""

    model: str
    version: int


RolloutEvent = RolledBack | Restored | Compared | Dropped
RolloutObserver = Callable[[RolloutEvent], None]
