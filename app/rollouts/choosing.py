"""Who gets which version: pure, the same in every process and after every restart."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from math import inf, log
from random import SystemRandom

from app.rollouts.rollout import Rollout, Variant

_random = SystemRandom()


def choose(rollout: Rollout, key: str | None, ready: Collection[int]) -> Variant:
    """Pick the variant for `key`, or for a new random key where it is None.

    Weighted rendezvous hashing: each variant draws a score from its weight and the key, and the
    highest wins. Raising one weight raises one score, so whoever leaves another variant goes to
    that one, and nobody leaves it. A variant that was rolled back, or whose version is not `ready`,
    hands its callers to the baseline after that choice: the other variants keep theirs.

    Thaler & Ravishankar, "Using name-based mappings to increase hit rates" (1998); weights after
    Schindelhauer & Schomaker, "Weighted distributed hash tables" (2005).
    """
    if key is None:
        key = _random.randbytes(8).hex()
    chosen = max(rollout.variants.values(), key=lambda variant: _score(rollout, variant, key))
    if chosen.rolled_back or chosen.version not in ready:
        return rollout.variants[rollout.baseline]
    return chosen


def _score(rollout: Rollout, variant: Variant, key: str) -> float:
    if variant.weight <= 0:
        return -inf
    drawn = share(f"{rollout.model}\0{variant.name}\0{key}")
    return variant.weight / -log(drawn) if drawn > 0 else 0.0


def share(key: str) -> float:
    """Place `key` on [0, 1), the same place in every process and on every day."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def is_sampled(rollout: Rollout) -> bool:
    """Draw whether a request is copied to the shadow."""
    shadow = rollout.shadow
    return shadow is not None and not rollout.shadow_stopped and _random.random() < shadow.sample
