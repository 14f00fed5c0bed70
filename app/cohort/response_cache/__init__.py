"""Answers that are kept: the same inputs of the same version are answered without a run.

A `CachedEngine` stands in front of another engine. Requests with equal inputs that come while the
first of them runs wait for its answer. Shadows and idle checks go past it.
"""

from cohort.response_cache.counts import CacheCounts
from cohort.response_cache.engine import CachedEngine
from cohort.response_cache.factory import NO_PIPELINES, CachedEngines
from cohort.response_cache.store import AnswerStore, key_of

__all__ = [
    "NO_PIPELINES",
    "AnswerStore",
    "CacheCounts",
    "CachedEngine",
    "CachedEngines",
    "key_of",
]
