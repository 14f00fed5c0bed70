"""Counts of hits, misses and bytes of a response cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounts:
    """The cache counts of one version.

    hits: Number of requests answered from the cache or from another request's run.
    misses: Number of requests that were not in the cache and were run.
    size: Bytes in the cache now.
    """

    hits: int = 0
    misses: int = 0
    size: int = 0
