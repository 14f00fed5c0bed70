"""Response cache: repeated inputs to the same version are answered without a run.

A `CachedEngine` wraps another engine. Requests with equal inputs that arrive while the first of
them runs wait for its answer. Shadow requests and idle checks bypass the cache.
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
