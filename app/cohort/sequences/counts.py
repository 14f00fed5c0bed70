"""What sequences there are, and were."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SequenceCounts:
    """The counts of one version.

    open: Sequences whose state is kept now.
    size: The bytes of those states.
    idle: Sequences that were forgotten since they had no request for long.
    """

    open: int = 0
    size: int = 0
    idle: int = 0
