"""A rollout: variants with their weights, the baseline, the sticky key and the shadow. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from random import random

from cohort.repository import Signatures
from cohort.rollouts.choosing import choose, choose_by_chance
from cohort.rollouts.decision_store import Decision
from cohort.rollouts.ramp import Ramp, RampKey

SIMULATED_CALLERS = 10_000
"""Callers that `Rollout.moves` simulates: shares are exact to about half a percentage point."""


@dataclass(frozen=True, slots=True)
class Variant:
    """An arm of a rollout.

    name: Its name, unique in the rollout.
    version: Version that answers its callers.
    weight: Its share of callers, relative to the sum of all weights, >= 0.
    rolled_back: True if the server decided that the baseline serves its callers; default False.
    """

    name: str
    version: int
    weight: float
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class Sticky:
    """The place of the key that keeps a caller on a variant. Exactly one of the two is set.

    header: Name of a header, in lower case; default "".
    parameter: Name of a request parameter; default "".
    """

    header: str = ""
    parameter: str = ""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A version that receives copies of requests and answers no caller.

    version: Version that runs the copies.
    sample: The share of requests that are copied; default 1.
    keep_examples: Number of last disagreeing requests to keep; default 0. They contain callers'
        data.
    redact: Inputs and outputs whose values are left out of kept examples; default none.
    exact: If true, outputs disagree if any bit differs; if false, if another decision follows from
        them; default false.
    """

    version: int
    sample: float = 1.0
    keep_examples: int = 0
    redact: tuple[str, ...] = ()
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Rollout:
    """The split of a model's traffic.

    The operator's rollout has no variant rolled back and no shadow stopped; `with_decisions`
    returns the one in use. In all methods `ready` are the versions that can serve; default None:
    all.

    model: The model's name.
    variants: The variants by name, in the operator's order.
    baseline: The name of the variant that the others are judged against.
    sticky: The place of the sticky key; default None: each request is assigned at random.
    shadow: The shadow; default None: no shadow.
    shadow_stopped: True if the server decided to stop the shadow; default False.
    ramp: The growth of a variant's share; default None: it changes by edits only.
    step: The step of the ramp in use, from 0; default 0.
    """

    model: str
    variants: Mapping[str, Variant]
    baseline: str
    sticky: Sticky | None = None
    shadow: Shadow | None = None
    shadow_stopped: bool = False
    ramp: Ramp | None = None
    step: int = 0
    _weights: tuple[tuple[str, float], ...] = field(init=False, repr=False, compare=False)
    _total: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the weights for choices once."""
        weights = tuple((name, variant.weight) for name, variant in self.variants.items())
        object.__setattr__(self, "_weights", weights)
        object.__setattr__(self, "_total", sum([weight for _, weight in weights]))

    @property
    def ramp_key(self) -> RampKey:
        """A name of the ramp that is equal in all processes; "" without one."""
        if self.ramp is None:
            return ""
        version = self.variants[self.ramp.variant].version
        content = json.dumps([self.baseline_version, self.ramp.steps])
        return f"{version}.{blake2b(content.encode(), digest_size=8).hexdigest()}"

    @property
    def versions(self) -> frozenset[int]:
        """Every version the rollout needs loaded."""
        named = {variant.version for variant in self.variants.values()}
        return frozenset(named | ({self.shadow.version} if self.shadow else set()))

    @property
    def baseline_version(self) -> int:
        """The version of the baseline."""
        return self.variants[self.baseline].version

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of the variants that are judged: all but the baseline."""
        return tuple(name for name in self.variants if name != self.baseline)

    def candidates_of(self, version: int) -> tuple[str, ...]:
        """The names of a version's variants, without the baseline."""
        return tuple(name for name in self.candidates if self.variants[name].version == version)

    # -- the choice of a variant

    def choose(self, key: str | None, ready: Collection[int] | None = None) -> Variant:
        """Pick the variant for a caller's `key`, or for a new random key if it is None.

        When exactly one weight grows, no caller leaves that variant. Callers of a variant that is
        rolled back or not ready get the baseline; all other callers keep their variant. So the
        baseline may be returned although it is not ready.
        """
        if key is None:
            name = choose_by_chance(self._weights, self._total)
        else:
            name = choose(self._weights, key, seed=self.model)
        variant = self.variants[name]
        if variant.rolled_back or (ready is not None and variant.version not in ready):
            return self.variants[self.baseline]
        return variant

    def shares(self, ready: Collection[int] | None = None) -> dict[str, float]:
        """Return the share of callers (0 to 1) that each variant serves; they sum to 1."""
        total = sum(variant.weight for variant in self.variants.values())
        shares = dict.fromkeys(self.variants, 0.0)
        for name, variant in self.variants.items():
            shares[self._serving(name, ready)] += variant.weight / total
        return shares

    def moves(self, to: Rollout) -> dict[tuple[str, str], float]:
        """Simulate the shares of sticky callers that an edit moves, by old and new variant.

        The largest come first; callers that keep their variant are left out.
        """
        keys = [f"caller-{number}" for number in range(SIMULATED_CALLERS)]
        counts = Counter((self.choose(key).name, to.choose(key).name) for key in keys)
        return {
            (before, after): count / SIMULATED_CALLERS
            for (before, after), count in counts.most_common()
            if before != after
        }

    def _serving(self, name: str, ready: Collection[int] | None) -> str:
        """Return the variant that serves the callers of `name`."""
        variant = self.variants[name]
        serves = not variant.rolled_back and (ready is None or variant.version in ready)
        return name if serves else self.baseline

    def samples_shadow(self) -> bool:
        """Draw at random whether a request is copied to the shadow."""
        shadow = self.shadow
        if shadow is None or self.shadow_stopped:
            return False
        return random() < shadow.sample  # noqa: S311 - no secret

    def problems(self, missing: Collection[int]) -> list[str]:
        """Return a sentence for each version in `missing`, with the effect on its callers."""
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

    def misfits(self, signatures: Signatures) -> list[str]:
        """Return a sentence for each variant, or shadow, that cannot accept the baseline's
        requests.

        Requests that it refuses before the run are not evidence: the guard would not notice.

        signatures: The known signatures by version.
        """
        baseline = signatures.get(self.baseline_version)
        whose = f"version {self.baseline_version}, the baseline"
        judged = {f"variant {name}": self.variants[name].version for name in self.candidates}
        if self.shadow is not None:
            judged["the shadow"] = self.shadow.version
        return [
            f"rollout of {self.model}: version {version} of {what} does not accept what callers "
            f"send: {misfit}"
            for what, version in judged.items()
            if baseline is not None
            and (signature := signatures.get(version)) is not None
            and (misfit := signature.misfit(baseline, whose))
        ]

    # -- changes

    def at_step(self, step: int) -> Rollout:
        """Return the rollout at a step of its ramp: the others share the rest as before."""
        if self.ramp is None:
            return self
        share = {self.ramp.variant: self.ramp.percent(step)}
        return replace(self.with_shares(share), step=step)

    def with_decisions(self, decisions: Mapping[int, Decision]) -> Rollout:
        """Return the operator's rollout with the server's decisions, by version, applied to it.

        Every candidate of such a version is rolled back. The shadow is stopped only for its
        disagreement: errors of a variant are not evidence about copies.
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
        """Return the rollout with one variant rolled back: the baseline serves its callers."""
        stopped = replace(self.variants[name], rolled_back=True)
        return replace(self, variants={**self.variants, name: stopped})

    def promoted(self, name: str) -> Rollout:
        """Return the rollout with `name` as baseline and only variant; it cannot be the shadow."""
        chosen = replace(self.variants[name], weight=100)
        shadow = self.shadow
        if shadow is not None and shadow.version == chosen.version:
            shadow = None
        return replace(self, variants={name: chosen}, baseline=name, shadow=shadow, ramp=None)

    def with_shares(self, percents: Mapping[str, float]) -> Rollout:
        """Return the rollout with these variants at these shares, in percent.

        The others share the rest in their former proportions; if they had no weight, the baseline
        gets it. Raises ValueError, with a sentence, if that is impossible.
        """
        rest = 100 - sum(percents.values())
        others = {name: one.weight for name, one in self.variants.items() if name not in percents}
        if rest < -1e-9 or min(percents.values()) < 0:
            raise ValueError(f"shares must be 0 % to 100 % in all, got {100 - rest:g} %")
        if not sum(others.values()):
            others = {name: float(name == self.baseline) for name in others}
        total = sum(others.values())
        if not total and abs(rest) > 1e-9:
            raise ValueError(
                f"shares must add up to 100 %, got {100 - rest:g} %: another variant must take the "
                "rest"
            )
        weights = dict(percents) | {
            name: round(max(rest, 0.0) * weight / total, 6) if total else 0.0
            for name, weight in others.items()
        }
        variants = {
            name: replace(variant, weight=float(weights[name]))
            for name, variant in self.variants.items()
        }
        return replace(self, variants=variants)

    def aborted(self, names: Collection[str]) -> Rollout:
        """Return the rollout with the weights of these candidates given to the baseline."""
        variants = {
            name: replace(variant, weight=0.0) if name in names else variant
            for name, variant in self.variants.items()
        }
        baseline = variants[self.baseline]
        freed = sum(self.variants[name].weight for name in names)
        variants[self.baseline] = replace(baseline, weight=baseline.weight + freed)
        ramp = None if self.ramp is not None and self.ramp.variant in names else self.ramp
        return replace(self, variants=variants, ramp=ramp)
