"""Operations of a rollout: shares, moves, decisions, edits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import isclose, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.rollouts import Decision, Rollout, Shadow, Variant
from tests.examples import examples

KEYS = [f"user-{number}" for number in range(4000)]


def split(*weights: float, model: str = "m", **changes: object) -> Rollout:
    """Variants v1, v2, … of versions 1, 2, …; v1 is the baseline."""
    variants = {
        f"v{number}": Variant(f"v{number}", number, weight)
        for number, weight in enumerate(weights, 1)
    }
    return replace(Rollout(model, variants, "v1"), **changes)  # type: ignore[arg-type]


def decided(*versions: int, reason: str = "errors") -> dict[int, Decision]:
    """Return a decision about each version."""
    return {version: Decision(version, reason) for version in versions}


def counted(rollout: Rollout, ready: frozenset[int] | None = None) -> Counter[str]:
    """Count how many of the KEYS each variant serves."""
    return Counter(rollout.choose(key, ready).name for key in KEYS)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    """Any rollout, with decisions in it."""
    weights = draw(st.lists(st.floats(0, 1000), min_size=1, max_size=5).filter(any))
    versions = draw(st.sets(st.integers(1, 6)))
    return split(*weights).with_decisions(decided(*versions))


versions = st.none() | st.frozensets(st.integers(1, 6))


# -- shares


@given(rollout=rollouts(), ready=versions)
def test_shares_sum_to_1_and_only_what_can_serve_has_one(
    rollout: Rollout, ready: frozenset[int] | None
) -> None:
    """The baseline takes over the callers whom no other variant can serve, ready or not."""
    shares = rollout.shares(ready)
    assert isclose(sum(shares.values()), 1)
    assert shares.keys() == rollout.variants.keys()
    for name, share in shares.items():
        variant = rollout.variants[name]
        out = variant.rolled_back or (ready is not None and variant.version not in ready)
        if name != rollout.baseline:
            assert share == 0 if out else share <= 1


def test_shares_are_weights_over_their_sum() -> None:
    """The shares of versions that are rolled back, or not ready, go to the baseline."""
    rollout = split(2, 1, 1)
    assert rollout.shares() == {"v1": 0.5, "v2": 0.25, "v3": 0.25}
    assert rollout.shares({1, 3}) == {"v1": 0.75, "v2": 0, "v3": 0.25}
    assert rollout.shares(set()) == {"v1": 1, "v2": 0, "v3": 0}
    assert rollout.rolled_back("v3").shares() == {"v1": 0.75, "v2": 0.25, "v3": 0}


@given(rollout=rollouts(), ready=versions)
@settings(max_examples=examples(20))
def test_choices_follow_shares(rollout: Rollout, ready: frozenset[int] | None) -> None:
    """The choices of `choose` match `shares` within five standard deviations."""
    counts = counted(rollout, ready)
    for name, share in rollout.shares(ready).items():
        slack = 5 * sqrt(share * max(0, 1 - share) / len(KEYS)) + 1 / len(KEYS)
        assert abs(counts[name] / len(KEYS) - share) <= slack


# -- who gets which variant


@given(
    rollout=rollouts(),
    ready=versions,
    which=st.integers(0, 4),
    growth=st.floats(1e-3, 1000),
    key=st.text(),
)
def test_when_one_weight_grows_nobody_leaves_that_variant(
    rollout: Rollout, ready: frozenset[int] | None, which: int, growth: float, key: str
) -> None:
    """A caller who moves gets the variant that now serves the callers of the one that grew."""
    name = list(rollout.variants)[which % len(rollout.variants)]
    variant = rollout.variants[name]
    grown = replace(
        rollout,
        variants={**rollout.variants, name: replace(variant, weight=variant.weight + growth)},
    )
    before, after = rollout.choose(key, ready).name, grown.choose(key, ready).name
    serves = not variant.rolled_back and (ready is None or variant.version in ready)
    assert after in {before, name if serves else rollout.baseline}


def test_over_many_steps_a_canarys_callers_stay_its_own() -> None:
    """From 1 % to all of it, the canary only gains callers."""
    callers: set[str] = set()
    for weight in (0, 1, 5, 10, 25, 50, 75, 100):
        rollout = split(100 - weight, weight)
        now = {key for key in KEYS if rollout.choose(key).name == "v2"}
        assert callers <= now
        callers = now
    assert len(callers) == len(KEYS)


def test_a_rolled_back_variant_hands_its_callers_to_the_baseline() -> None:
    """No other caller moves."""
    before = split(60, 20, 20)
    after = before.rolled_back("v2")
    for key in KEYS:
        name = before.choose(key).name
        assert after.choose(key).name == ("v1" if name == "v2" else name)


def test_a_version_that_is_not_ready_gets_no_traffic() -> None:
    """Its callers get the baseline until it is ready, even if the baseline is not."""
    rollout = split(1, 1)
    assert counted(rollout, frozenset({1})) == {"v1": len(KEYS)}
    assert counted(rollout, frozenset()) == {"v1": len(KEYS)}


def test_without_a_key_each_request_draws_anew() -> None:
    """Both variants are chosen about equally often."""
    counts = Counter(split(1, 1).choose(None).name for _ in range(2000))
    assert counts.keys() == {"v1", "v2"}
    assert min(counts.values()) > 850


def test_models_split_their_callers_independently() -> None:
    """A caller on one model's canary is not therefore on another's."""
    one, other = split(1, 1), split(1, 1, model="n")
    same = sum(one.choose(key).name == other.choose(key).name for key in KEYS)
    assert 0.45 < same / len(KEYS) < 0.55


def test_shares_that_are_all_named_leave_nothing_to_the_others() -> None:
    """This holds even if the others had no weight before."""
    variants = {
        name: Variant(name, 1, weight) for name, weight in zip("abc", (1, 1, 0), strict=True)
    }
    rollout = Rollout("m", variants, "a").with_shares({"a": 30, "b": 70})
    assert {name: one.weight for name, one in rollout.variants.items()} == {
        "a": 30,
        "b": 70,
        "c": 0,
    }


def test_a_shadow_sees_its_sample_until_it_is_stopped() -> None:
    """The sample is all, none, or about a share of the requests."""
    rollout = split(1, shadow=Shadow(3, sample=0.2))
    seen = sum(rollout.samples_shadow() for _ in range(5000)) / 5000
    assert 0.15 < seen < 0.25
    assert rollout.versions == {1, 3}
    everything = replace(rollout, shadow=Shadow(3))
    assert all(everything.samples_shadow() for _ in range(100))
    assert not any(replace(everything, shadow_stopped=True).samples_shadow() for _ in range(100))
    assert not any(split(1).samples_shadow() for _ in range(100))


# -- who moves


@given(before=rollouts(), after=rollouts())
@settings(max_examples=examples(4))
def test_moves_are_what_choose_does(before: Rollout, after: Rollout) -> None:
    """Moves are counted by variant left and joined; callers who stay are not counted."""
    keys = [f"caller-{number}" for number in range(10_000)]
    pairs = Counter((before.choose(key).name, after.choose(key).name) for key in keys)
    assert before.moves(after) == {
        pair: count / len(keys) for pair, count in pairs.items() if pair[0] != pair[1]
    }


def test_moves_of_an_edit() -> None:
    """The largest move is first; a variant that is rolled back has no callers to move."""
    found = split(50, 40, 10).moves(split(50, 0, 0))
    assert list(found) == [("v2", "v1"), ("v3", "v1")]
    assert abs(found["v2", "v1"] - 0.4) < 0.03
    assert abs(found["v3", "v1"] - 0.1) < 0.02
    assert split(50, 50).rolled_back("v2").moves(split(50, 0)) == {}
    assert split(50, 50).moves(split(1, 1)) == {}


# -- decisions


def test_a_decision_rolls_back_the_candidates_of_its_version() -> None:
    """It rolls back all of them for any reason, but never the baseline, nor other versions."""
    rollout = split(1, 1, 1)
    rollout = replace(rollout, variants={**rollout.variants, "twin": Variant("twin", 2, 5)})
    out = rollout.with_decisions(decided(2, 9, reason="operator"))
    assert [one.name for one in out.variants.values() if one.rolled_back] == ["v2", "twin"]
    assert rollout.candidates_of(2) == ("v2", "twin")
    assert rollout.candidates == ("v2", "v3", "twin")
    assert rollout.with_decisions(decided(1)) == rollout
    assert rollout.with_decisions({}) == rollout


@pytest.mark.parametrize(
    ("version", "reason", "stopped"),
    [
        (3, "disagreement", True),
        (3, "errors", False),
        (3, "operator", False),
        (2, "disagreement", False),
    ],
)
def test_a_shadow_is_stopped_for_its_own_disagreement_only(
    version: int, reason: str, stopped: bool
) -> None:
    """A variant's errors do not concern copies."""
    rollout = split(1, 1, shadow=Shadow(3))
    assert rollout.with_decisions(decided(version, reason=reason)).shadow_stopped is stopped


def test_a_disagreement_stops_the_shadow_and_the_variants_of_its_version() -> None:
    """One decision has both effects."""
    rollout = split(1, 1, shadow=Shadow(2)).with_decisions(decided(2, reason="disagreement"))
    assert (rollout.shadow_stopped, rollout.variants["v2"].rolled_back) == (True, True)


# -- edits


def test_a_promoted_variant_is_the_only_one() -> None:
    """A shadow of another version is kept, and one of the promoted version is removed."""
    rollout = split(90, 10, shadow=Shadow(2))
    promoted = rollout.promoted("v2")
    assert promoted.variants == {"v2": Variant("v2", 2, 100)}
    assert (promoted.baseline, promoted.shadow, promoted.baseline_version) == ("v2", None, 2)
    assert rollout.promoted("v1").shadow == Shadow(2)


@given(rollout=rollouts())
def test_an_abort_moves_callers_to_the_baseline_alone(rollout: Rollout) -> None:
    """No other share changes, and the sum of weights stays."""
    for names in (rollout.candidates[:1], rollout.candidates):
        before, after = rollout.shares(), rollout.aborted(names).shares()
        assert all(after[name] == 0 for name in names)
        for name in set(rollout.candidates) - set(names):
            assert isclose(after[name], before[name], abs_tol=1e-9)
        assert isclose(sum(after.values()), 1)


# -- versions that are missing


def test_missing_versions_are_told_by_what_callers_get() -> None:
    """The baseline's are rejected, a candidate's go to it, and a shadow gets no copies."""
    rollout = split(1, 1, shadow=Shadow(7))
    assert rollout.problems([]) == []
    first, second, third = rollout.problems([1, 2, 7])
    assert "version 1 of variant v1 is not ready; its callers are rejected" in first
    assert "version 2 of variant v2 is not ready; its callers are served by the baseline" in second
    assert "version 7 of the shadow is not ready" in third
    assert rollout.problems([2]) == [second]
