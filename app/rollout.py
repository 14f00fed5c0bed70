"""Who gets which version: pure, the same in every process and after every restart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import inf, log
from random import SystemRandom

_random = SystemRandom()


@dataclass(frozen=True, slots=True)
class Variant:
    """An arm of a rollout. `rolled_back` is the server's doing, all else the operator's."""

    name: str
    version: int
    weight: float
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class Sticky:
    """Where the key that keeps a caller on a variant is found: a header or a parameter."""

    header: str = ""
    parameter: str = ""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A version that sees a `sample` (0 to 1) of the traffic and answers nobody.

    The last `keep_examples` requests it answered differently are kept for an operator, without the
    values of the inputs and outputs named in `redact`.
    """

    version: int
    sample: float = 1.0
    keep_examples: int = 0
    redact: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rollout:
    """How a model's traffic is split. `baseline` is the variant the others are judged against."""

    model: str
    variants: Mapping[str, Variant]
    baseline: str
    sticky: Sticky | None = None
    shadow: Shadow | None = None
    shadow_stopped: bool = False

    @property
    def versions(self) -> frozenset[int]:
        """Every version the rollout needs loaded."""
        named = {variant.version for variant in self.variants.values()}
        return frozenset(named | ({self.shadow.version} if self.shadow else set()))

    def rolled_back(self, name: str) -> Rollout:
        """The same rollout with a variant that gets no traffic any more."""
        stopped = replace(self.variants[name], rolled_back=True)
        return replace(self, variants={**self.variants, name: stopped})

    def without_shadow(self) -> Rollout:
        """The same rollout without copies going to the shadow version."""
        return replace(self, shadow_stopped=True)


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
