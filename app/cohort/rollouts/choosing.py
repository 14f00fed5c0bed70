"""Weighted rendezvous hashing: pure, the same in every process and after every restart.

Thaler & Ravishankar, "Using name-based mappings to increase hit rates" (1998); weights after
Schindelhauer & Schomaker, "Weighted distributed hash tables" (2005).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import inf, log
from operator import itemgetter
from random import random


def choose(weights: Iterable[tuple[str, float]], key: str, *, seed: str) -> str:
    """Pick one of the names in `weights`, each with a probability proportional to its weight.

    Every name draws a score from its weight, the key and `seed`, and the highest wins. Raising one
    weight raises one score: keys move to that name from the others, and none leaves it. A weight of
    0 is never picked while another is positive.
    """

    def score(named: tuple[str, float]) -> float:
        name, weight = named
        if weight <= 0:
            return -inf
        drawn = uniform(f"{seed}\0{name}\0{key}")
        return weight / -log(drawn) if drawn > 0 else 0.0

    return max(weights, key=score)[0]


def choose_by_chance(weights: Sequence[tuple[str, float]], total: float) -> str:
    """Pick one of the names at random, in proportion to `weights`, whose sum is `total`."""
    left = random() * total  # noqa: S311 - no secret
    for name, weight in weights:
        left -= weight
        if left < 0:
            return name
    return max(weights, key=itemgetter(1))[0]  # only after rounding errors


def uniform(key: str) -> float:
    """Map `key` to [0, 1), uniformly, and to the same number in every process."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)
