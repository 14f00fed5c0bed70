"""Who gets which version."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.rollouts import Rollout, Shadow, Variant, choose, is_sampled, share

READY = frozenset(range(1, 10))
KEYS = [f"user-{number}" for number in range(10_000)]


def split(weights: Mapping[str, float], model: str = "m") -> Rollout:
    """A rollout of variants of versions 1, 2, …; the first is the baseline."""
    variants = {
        name: Variant(name, number, weight)
        for number, (name, weight) in enumerate(weights.items(), 1)
    }
    return Rollout(model, variants, next(iter(weights)))


def rollout(**weights: float) -> Rollout:
    """The same by keyword."""
    return split(weights)


def chosen(of: Rollout) -> dict[str, str]:
    """The variant of each of 10,000 callers."""
    return {key: choose(of, key, READY).name for key in KEYS}


@given(
    weights=st.lists(st.floats(0, 100), min_size=2, max_size=5).filter(any),
    which=st.integers(0, 4),
    growth=st.floats(1e-3, 1000),
    key=st.text(),
)
def test_when_one_weight_grows_nobody_leaves_that_variant(
    weights: list[float], which: int, growth: float, key: str
) -> None:
    """Whoever moves, moves to the variant that grew."""
    names = [f"v{number}" for number in range(len(weights))]
    grown = names[which % len(names)]
    before = split(dict(zip(names, weights, strict=True)))
    variant = before.variants[grown]
    after = replace(
        before,
        variants={**before.variants, grown: replace(variant, weight=variant.weight + growth)},
    )
    first, second = choose(before, key, READY).name, choose(after, key, READY).name
    assert second in {first, grown}


def test_over_many_steps_a_canarys_callers_stay_its_own() -> None:
    """From 1 % to all of it over 10,000 keys: the canary only ever gains callers."""
    callers: set[str] = set()
    for weight in (0, 1, 5, 10, 25, 50, 75, 100):
        of = chosen(rollout(stable=100 - weight, canary=weight))
        now = {key for key, name in of.items() if name == "canary"}
        assert callers <= now
        callers = now
    assert len(callers) == len(KEYS)


@pytest.mark.parametrize("weights", [(90, 10), (50, 50), (1, 1), (70, 20, 10), (99.5, 0.5)])
def test_shares_follow_weights(weights: tuple[float, ...]) -> None:
    """Within five standard deviations of a fair draw, over 10,000 keys."""
    of = split({f"v{number}": weight for number, weight in enumerate(weights)})
    counts = Counter(chosen(of).values())
    for variant in of.variants.values():
        expected = variant.weight / sum(weights)
        slack = 5 * sqrt(expected * (1 - expected) / len(KEYS))
        assert abs(counts[variant.name] / len(KEYS) - expected) <= slack


def test_a_key_gets_the_same_variant_in_every_process() -> None:
    """Nothing of the process, its hash seed or its clock goes into the choice."""
    code = (
        "from tests.rollouts.test_choosing import *;"
        "print([choose(rollout(a=1, b=1, c=2), key, READY).name for key in KEYS[:50]])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = [choose(rollout(a=1, b=1, c=2), key, READY).name for key in KEYS[:50]]
    assert outputs == {f"{here}\n".encode()}


def test_models_split_their_callers_independently() -> None:
    """Who is on one model's canary is not, for that, on another's."""
    one, other = (chosen(split({"a": 1, "b": 1}, model)) for model in ("m", "n"))
    same = sum(one[key] == other[key] for key in KEYS) / len(KEYS)
    assert 0.45 < same < 0.55


def test_a_rolled_back_variant_hands_its_callers_to_the_baseline() -> None:
    """And nobody else moves."""
    before = rollout(stable=60, canary=20, other=20)
    first, second = chosen(before), chosen(before.rolled_back("canary"))
    for key in KEYS:
        assert second[key] == ("stable" if first[key] == "canary" else first[key])


def test_a_version_that_is_not_ready_gets_no_traffic() -> None:
    """Its callers get the baseline until it is."""
    of = rollout(stable=1, canary=1)
    assert {choose(of, key, {1}).name for key in KEYS[:200]} == {"stable"}


def test_without_a_key_each_request_draws_anew() -> None:
    """Both variants come up, about equally often."""
    counts = Counter(choose(rollout(a=1, b=1), None, READY).name for _ in range(2000))
    assert min(counts.values()) > 850


@given(key=st.text(alphabet=st.characters(codec=None)))
def test_a_share_lies_in_its_range_and_is_always_the_same(key: str) -> None:
    """Whatever the key, exclusive surrogates included."""
    assert 0 <= share(key) < 1
    assert share(key) == share(key)


def test_a_shadow_sees_its_sample_until_it_is_stopped() -> None:
    """All, none, or about a share of the requests."""
    of = replace(rollout(a=1), shadow=Shadow(3, sample=0.2))
    seen = sum(is_sampled(of) for _ in range(5000)) / 5000
    assert 0.15 < seen < 0.25
    assert of.versions == {1, 3}
    assert not any(is_sampled(of.without_shadow()) for _ in range(100))
    assert not any(is_sampled(rollout(a=1)) for _ in range(100))
