"""`cache:` in a model's config: answers that are kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """`cache:` of a model whose answers are kept by their inputs.

    max_mb: Megabytes of answers in a process at most.
    """

    max_mb: float
