"""`generation:` in a model's config: the running of a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cohort.repository.schema import Range


@dataclass(frozen=True, slots=True)
class GenerationPolicy:
    """`generation:` of a language model.

    cache_mb: Maximum size of the cache of keys and values; default None: a quarter of the memory
        that is free at load.
    max_sequences: Maximum answers that are generated at a time; further ones wait; default 16.
    prefill_tokens: Maximum tokens of prompts that a step computes; default 128. Prompts of at
        most half of it are computed in one step. While answers continue, longer ones are computed
        in parts that take about as long as two steps.
    max_waiting: Maximum requests that wait; further ones are rejected; default 512.
    """

    cache_mb: float | None = None
    max_sequences: int = 16
    prefill_tokens: int = 128
    max_waiting: int = 512


GENERATION_RANGES: Mapping[str, Range] = {
    "generation.cache_mb": Range(0.001, 2**24, "without it, a quarter of free memory"),
    "generation.max_sequences": Range(1, 1024),
    "generation.prefill_tokens": Range(1, 2**16),
    "generation.max_waiting": Range(1, 2**20),
}
