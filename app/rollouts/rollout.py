"""What a rollout is: variants and their weights, the baseline, stickiness and the shadow. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from random import SystemRandom

from app.rollouts.choosing import choose
from app.rollouts.decisions import Decision

SIMULATED_CALLERS = 10_000
"""How many callers `Rollout.moves` draws: a share is known to about half a percentage point."""

_random = SystemRandom()


@dataclass(frozen=True, slots=True)
class Variant:
    """An arm of a rollout. `rolled_back` is the server's decision, all else the operator's."""

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
    """A version that receives copies of a `sample` (0 to 1) of the traffic and answers no caller.

    The last `keep_examples` requests on which it disagreed are kept for an operator, without the
    values of the inputs and outputs named in `redact`.
    """

    version: int
    sample: float = 1.0
    keep_examples: int = 0
    redact: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rollout:
    """How a model's traffic is split. `baseline` is the variant the others are judged against.

    The operator's rollout has no variant rolled back and no shadow stopped; `with_decisions` gives
    the one that serves. In all methods `ready` are the versions that can serve; None means all.
    """

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

    @property
    def baseline_version(self) -> int:
        return self.variants[self.baseline].version

    @property
    def candidates(self) -> tuple[str, ...]:
        """The variants that are judged: all but the baseline."""
        return tuple(name for name in self.variants if name != self.baseline)

    def candidates_of(self, version: int) -> tuple[str, ...]:
        """The variants of a version, without the baseline."""
        return tuple(name for name in self.candidates if self.variants[name].version == version)

    # -- who gets which variant

    def choose(self, key: str | None, ready: Collection[int] | None = None) -> Variant:
        """Pick the variant for a caller's `key`, or for a new random key where it is None.

        When exactly one weight grows, no caller leaves that variant. A variant that is rolled back
        or not ready hands its callers to the baseline after the choice: all others keep theirs. So
        the baseline may be returned although it is not ready.
        """
        if key is None:
            key = _random.randbytes(8).hex()
        weights = [(name, variant.weight) for name, variant in self.variants.items()]
        return self.variants[self._serving(choose(weights, key, seed=self.model), ready)]

    def shares(self, ready: Collection[int] | None = None) -> dict[str, float]:
        """The share of callers (0 to 1) that each variant serves; they sum to 1."""
        total = sum(variant.weight for variant in self.variants.values())
        shares = dict.fromkeys(self.variants, 0.0)
        for name, variant in self.variants.items():
            shares[self._serving(name, ready)] += variant.weight / total
        return shares

    def moves(self, to: Rollout) -> dict[tuple[str, str], float]:
        """The share of sticky callers that an edit moves, by (variant here, variant in `to`).

        The largest come first; callers who keep their variant are left out. Simulated.
        """
        keys = [f"caller-{number}" for number in range(SIMULATED_CALLERS)]
        counts = Counter((self.choose(key).name, to.choose(key).name) for key in keys)
        return {
            (before, after): count / SIMULATED_CALLERS
            for (before, after), count in counts.most_common()
            if before != after
        }

    def _serving(self, name: str, ready: Collection[int] | None) -> str:
        """The variant that serves the callers of `name`."""
        variant = self.variants[name]
        serves = not variant.rolled_back and (ready is None or variant.version in ready)
        return name if serves else self.baseline

    def samples_shadow(self) -> bool:
        """Draw whether a request is copied to the shadow."""
        shadow = self.shadow
        return shadow is not None and not self.shadow_stopped and _random.random() < shadow.sample

    def problems(self, missing: Collection[int]) -> list[str]:
        """What it means for callers that the versions in `missing` cannot serve, in sentences."""
        found = []
        for name, variant in self.variants.items():
            if variant.version in missing:
                callers = "rejected" if name == self.baseline else "served by the baseline"
                found.append(
                    f"rollout of {self.model}: version {variant.version} of variant {name} is not "
                    f"ready; its callers are {callers}"
                )
        if self.shadow is not None and self.shadow.version in missing:
            found.append(
                f"rollout of {self.model}: version {self.shadow.version} of the shadow is not "
                "ready; no request is copied"
            )
        return found

    # -- what becomes of it

    def with_decisions(self, decisions: Mapping[int, Decision]) -> Rollout:
        """The operator's rollout with the server's decisions, by version, applied to it.

        Every candidate of such a version is rolled back. The shadow is stopped only for its
        disagreement: errors of a variant say nothing about copies.
        """
        rollout = self
        for version, decision in decisions.items():
            for name in self.candidates_of(version):
                rollout = rollout.rolled_back(name)
            if (
                self.shadow is not None
                and self.shadow.version == version
                and decision.reason == "disagreement"
            ):
                rollout = replace(rollout, shadow_stopped=True)
        return rollout

    def rolled_back(self, name: str) -> Rollout:
        """The same rollout with a variant whose callers the baseline serves."""
        stopped = replace(self.variants[name], rolled_back=True)
        return replace(self, variants={**self.variants, name: stopped})

    def promoted(self, name: str) -> Rollout:
        """The rollout with `name` as the baseline and only variant, without a shadow of its own."""
        chosen = replace(self.variants[name], weight=100)
        shadow = self.shadow
        if shadow is not None and shadow.version == chosen.version:
            shadow = None
        return replace(self, variants={name: chosen}, baseline=name, shadow=shadow)

    def aborted(self, names: Collection[str]) -> Rollout:
        """The rollout with the weights of these candidates given to the baseline."""
        variants = {
            name: replace(variant, weight=0.0) if name in names else variant
            for name, variant in self.variants.items()
        }
        baseline = variants[self.baseline]
        freed = sum(self.variants[name].weight for name in names)
        variants[self.baseline] = replace(baseline, weight=baseline.weight + freed)
        return replace(self, variants=variants)
