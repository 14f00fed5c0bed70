"""What a rollout is: variants and their weights, the baseline, stickiness and the shadow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


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
