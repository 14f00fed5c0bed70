"""`cache:` in a model's config: the cache of responses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """`cache:` of a model: a cache of responses, keyed by their inputs.

    max_mb: Maximum size of the responses that a process keeps.
    """

    max_mb: float
