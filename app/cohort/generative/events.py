"""The counts of a language model's version, which its engine keeps, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class GenerationCounts:
    """The sequences and tokens of one version. A choice of an answer is a sequence.

    running: The sequences that have a place in the cache, those in prefill included.
    waiting: The sequences that have none, those that were pre-empted included.
    prompt_tokens: The tokens of prompts whose work began; those found in the cache are included.
    generated_tokens: The new tokens of all answers, of cancelled ones too.
    prefix_hit_tokens: The tokens of prompts that were found in the cache.
    preemptions: How often a running sequence lost its place in the cache.
    cache_used: The bytes of the cache that hold tokens of running sequences.
    cache_total: The bytes of the whole cache.
    """

    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    cache_used: int = 0
    cache_total: int = 0


CountsOf = Callable[[str, int], GenerationCounts]
"""Returns the counts of a model's version; the same ones for the same version."""
