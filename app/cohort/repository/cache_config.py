"""`cache:` in a model's config: answers that are kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """`cache:` of a model: answers are kept by their inputs.

    max_mb: Maximum size of the answers that a process keeps.
    """

    max_mb: float
