"""Counts of open and expired sequences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SequenceCounts:
    """The sequence counts of one version.

    open: Number of open sequences.
    size: Bytes of their states.
    idle: Number of sequences that were removed because they were idle too long.
    """

    open: int = 0
    size: int = 0
    idle: int = 0
