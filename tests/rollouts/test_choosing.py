"""Weighted rendezvous hashing."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.rollouts.choosing import choose, uniform

KEYS = [f"user-{number}" for number in range(10_000)]


def chosen(*weights: float, seed: str = "m") -> dict[str, str]:
    """Return the name that each of 10,000 keys gets; weights belong to v0, v1, …"""
    named = [(f"v{number}", weight) for number, weight in enumerate(weights)]
    return {key: choose(named, key, seed=seed) for key in KEYS}


@given(
    weights=st.lists(st.floats(0, 100), min_size=2, max_size=5).filter(any),
    which=st.integers(0, 4),
    growth=st.floats(1e-3, 1000),
    key=st.text(),
)
def test_when_one_weight_grows_no_key_leaves_it(
    weights: list[float], which: int, growth: float, key: str
) -> None:
    """A key that moves, moves to the name that grew."""
    named = [(f"v{number}", weight) for number, weight in enumerate(weights)]
    name, weight = named[which % len(named)]
    grown = [(one, weight + growth if one == name else other) for one, other in named]
    assert choose(grown, key, seed="m") in {choose(named, key, seed="m"), name}


@pytest.mark.parametrize("weights", [(90, 10), (50, 50), (1, 1), (70, 20, 10), (99.5, 0.5), (1, 0)])
def test_keys_follow_weights(weights: tuple[float, ...]) -> None:
    """Shares are within five standard deviations of a fair draw, over 10,000 keys."""
    counts = Counter(chosen(*weights).values())
    for number, weight in enumerate(weights):
        expected = weight / sum(weights)
        slack = 5 * sqrt(expected * (1 - expected) / len(KEYS))
        assert abs(counts[f"v{number}"] / len(KEYS) - expected) <= slack


@given(key=st.text(), position=st.integers(0, 2))
def test_a_weight_of_0_is_never_chosen(key: str, position: int) -> None:
    """Its position among the others does not matter."""
    named = [("a", 1.0), ("b", 1e-9)]
    named.insert(position, ("none", 0.0))
    assert choose(named, key, seed="m") != "none"


@given(key=st.text(), weights=st.permutations([("a", 1.0), ("b", 2.0), ("c", 3.0)]))
def test_the_order_of_names_does_not_matter(key: str, weights: list[tuple[str, float]]) -> None:
    """An operator may sort the file."""
    assert choose(weights, key, seed="m") == choose(sorted(weights), key, seed="m")


def test_a_key_is_placed_the_same_in_every_process() -> None:
    """Nothing of the process, its hash seed or its clock goes into the choice."""
    code = (
        "from tests.rollouts.test_choosing import *;"
        "print([choose([('a', 1), ('b', 1), ('c', 2)], key, seed='m') for key in KEYS[:50]])"
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
    here = [choose([("a", 1), ("b", 1), ("c", 2)], key, seed="m") for key in KEYS[:50]]
    assert outputs == {f"{here}\n".encode()}


def test_placements_of_earlier_releases_stay() -> None:
    """A change of the hash would move nearly everybody's callers at an upgrade."""
    assert uniform("digits\0canary\0user-1") == 0.5656883714745309
    named = [("stable", 90.0), ("canary", 10.0)]
    placed = [n for n in range(100) if choose(named, f"user-{n}", seed="digits") == "canary"]
    assert placed == [2, 8, 14, 21, 26, 27, 28, 29, 31, 41, 55, 60, 63, 72, 78]


def test_seeds_place_keys_independently() -> None:
    """A caller on one model's canary is not therefore on another's."""
    one, other = chosen(1, 1, seed="m"), chosen(1, 1, seed="n")
    same = sum(one[key] == other[key] for key in KEYS) / len(KEYS)
    assert 0.45 < same < 0.55


@given(key=st.text(alphabet=st.characters(codec=None)))
def test_a_placement_lies_in_its_range_and_is_always_the_same(key: str) -> None:
    """This holds for any key, lone surrogates included."""
    assert 0 <= uniform(key) < 1
    assert uniform(key) == uniform(key)
