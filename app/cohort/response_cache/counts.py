"""What a cache did so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounts:
    """The counts of one version.

    hits: Requests that were answered without a run of their own.
    misses: Requests that were looked for and run.
    size: The bytes that are kept now.
    """

    hits: int = 0
    misses: int = 0
    size: int = 0
