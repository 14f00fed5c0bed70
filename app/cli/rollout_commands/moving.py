"""Whom an edit moves: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from app.rollouts import Rollout, choose

KEYS = 10_000
"""Callers that are simulated: a share is known to about half a percentage point."""


def with_decisions(rollout: Rollout, decided: Collection[int]) -> Rollout:
    """The rollout as a server runs it, that rolled these versions back."""
    for name, variant in rollout.variants.items():
        if variant.version in decided and name != rollout.baseline:
            rollout = rollout.rolled_back(name)
    return rollout


def shares(rollout: Rollout) -> Mapping[str, float]:
    """The share of callers by variant, if every version is ready."""
    total = sum(variant.weight for variant in rollout.variants.values())
    found = dict.fromkeys(rollout.variants, 0.0)
    for name, variant in rollout.variants.items():
        found[rollout.baseline if variant.rolled_back else name] += variant.weight / total
    return found


def moves(old: Rollout, new: Rollout) -> Mapping[tuple[str, str], float]:
    """The share of sticky callers who go from one variant to another, by (from, to)."""
    ready = old.versions | new.versions
    counted: Counter[tuple[str, str]] = Counter()
    for number in range(KEYS):
        key = f"caller-{number}"
        counted[choose(old, key, ready).name, choose(new, key, ready).name] += 1
    return {pair: count / KEYS for pair, count in counted.most_common() if pair[0] != pair[1]}
