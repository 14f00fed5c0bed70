"""The judgement of variants, simulated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.rollouts import Guard
from app.rollouts.sequential_test import (
    Counts,
    Evidence,
    Reason,
    judge,
    renew,
    weigh_one_sample,
    weigh_two_samples,
)

ERRORS = Guard(max_error_rate_increase=0.01)
EVERYTHING = Guard(max_error_rate_increase=0.01, max_latency_ratio=1.5, max_disagreement=0.02)


@dataclass(frozen=True)
class Traffic:
    """Error rates, how many baseline requests come with each canary request, and for how long."""

    baseline: float
    canary: float
    ratio: int = 9
    requests: int = 2000
    look_every: int = 20


def rolled_back_after(traffic: Traffic, guard: Guard, random: np.random.Generator) -> int | None:
    """After how many canary requests the guard rolls back; None if it never does."""
    evidence = Evidence()
    increase = guard.max_error_rate_increase or 0.0
    for _ in range(traffic.requests // traffic.look_every):
        n = traffic.look_every
        baseline = Counts(
            n * traffic.ratio, int(random.binomial(n * traffic.ratio, traffic.baseline))
        )
        variant = Counts(n, int(random.binomial(n, traffic.canary)))
        evidence = weigh_two_samples(evidence, baseline, variant, increase)
        if judge({"errors": evidence}, guard):
            return evidence.variant.total
    return None


@pytest.mark.parametrize("ratio", [1, 9])
def test_a_canary_exactly_at_the_limit_is_rarely_rolled_back(ratio: int) -> None:
    """Over 2,000 runs of 4,000 requests, looked at all the time: at most 1 - confidence of them."""
    random = np.random.default_rng(7)
    traffic = Traffic(0.01, 0.02, ratio, requests=4000, look_every=100)
    runs = 2000
    false = sum(rolled_back_after(traffic, ERRORS, random) is not None for _ in range(runs))
    assert false / runs <= 1 - ERRORS.confidence


@pytest.mark.parametrize(("ratio", "guard"), [(9, EVERYTHING), (4, EVERYTHING), (1, ERRORS)])
def test_four_percent_against_one_is_caught_within_2000_requests(ratio: int, guard: Guard) -> None:
    """In at least 95 % of runs, with 1 % more allowed."""
    random = np.random.default_rng(11)
    runs = 400
    caught = sum(
        rolled_back_after(Traffic(0.01, 0.04, ratio, look_every=10), guard, random) is not None
        for _ in range(runs)
    )
    assert caught / runs >= 0.95 - 2 * (0.05 * 0.95 / runs) ** 0.5


def test_a_canary_as_good_as_the_baseline_is_left_alone() -> None:
    """However long it runs."""
    random = np.random.default_rng(3)
    traffic = Traffic(0.05, 0.05, requests=20_000, look_every=100)
    assert not any(rolled_back_after(traffic, ERRORS, random) for _ in range(100))


def test_a_baseline_that_fails_too_does_not_roll_back_its_canary() -> None:
    """Ten percent against ten is no increase: a caller's bad input alone moves nothing."""
    random = np.random.default_rng(5)
    traffic = Traffic(0.10, 0.105, requests=4000)
    assert sum(rolled_back_after(traffic, ERRORS, random) is not None for _ in range(200)) <= 10


def test_nothing_is_decided_before_min_requests() -> None:
    """Not even when every request fails."""
    evidence = weigh_two_samples(Evidence(), Counts(1000, 0), Counts(199, 199), 0.01)
    assert judge({"errors": evidence}, ERRORS) is None
    evidence = weigh_two_samples(evidence, Counts(10, 0), Counts(1, 1), 0.01)
    verdict = judge({"errors": evidence}, ERRORS)
    assert verdict is not None
    assert str(verdict) == "errors: 100.00% of 200 requests against 0.00%"


@pytest.mark.parametrize(("rate", "low", "high"), [(0.02, 0.0, 0.05), (0.08, 0.95, 1.0)])
def test_one_stream_is_held_against_its_limit(rate: float, low: float, high: float) -> None:
    """At a limit of 2 % rarely, at four times that nearly always, within 2,000 requests."""
    random = np.random.default_rng(13)
    guard = Guard(max_disagreement=0.02)
    runs = 400
    caught = 0
    for _ in range(runs):
        evidence = Evidence()
        for _ in range(100):
            evidence = weigh_one_sample(evidence, Counts(20, int(random.binomial(20, rate))), 0.02)
            if judge({"disagreement": evidence}, guard):
                caught += 1
                break
    assert low <= caught / runs <= high


@given(
    blocks=st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 500), st.floats(0, 1), st.floats(0, 1)),
        max_size=20,
    ),
    increase=st.floats(0, 0.5),
)
def test_evidence_is_a_number_whatever_comes(
    blocks: list[tuple[int, int, float, float]], increase: float
) -> None:
    """No block, however lopsided, gives a NaN or an infinity, and counts add up."""
    evidence = Evidence()
    for canary, baseline, bad_canary, bad_baseline in blocks:
        evidence = weigh_two_samples(
            evidence,
            Counts(baseline, int(baseline * bad_baseline)),
            Counts(canary, int(canary * bad_canary)),
            increase,
        )
    assert np.isfinite(evidence.log_e)
    assert evidence.variant.total == sum(block[0] for block in blocks)


@given(low=st.integers(0, 100), bad=st.integers(0, 100), increase=st.floats(0, 0.3))
def test_one_block_has_no_expected_gain_at_the_limit(low: int, bad: int, increase: float) -> None:
    """What makes the test valid: averaged over the null, a block's e-value is at most 1."""
    p = low / 200
    n_baseline, n_canary = 6, 4
    q = min(p + increase, 1.0)
    start = weigh_two_samples(Evidence(), Counts(200, bad), Counts(1, 0), increase)
    mean = 0.0
    for x in range(n_baseline + 1):
        for y in range(n_canary + 1):
            after = weigh_two_samples(start, Counts(n_baseline, x), Counts(n_canary, y), increase)
            weight = _binomial(n_baseline, x, p) * _binomial(n_canary, y, q)
            mean += weight * float(np.exp(after.log_e - start.log_e))
    assert mean <= 1 + 1e-6


def _binomial(n: int, k: int, p: float) -> float:
    from math import comb

    return comb(n, k) * p**k * (1 - p) ** (n - k)


def test_the_budget_is_split_among_the_limits_that_are_set() -> None:
    """Three limits need stronger evidence each than one."""
    assert EVERYTHING.threshold > ERRORS.threshold
    reasons: dict[Reason, Evidence] = {"errors": Evidence(), "latency": Evidence()}
    assert judge(reasons, EVERYTHING) is None


def test_a_variant_that_turns_bad_late_is_caught_as_soon() -> None:
    """Many good requests do not have to be outweighed by as many bad ones."""
    random = np.random.default_rng(17)
    evidence = Evidence()
    for _ in range(2000):
        good = Counts(500, int(random.binomial(500, 0.01)))
        evidence = weigh_two_samples(
            renew(evidence), good, Counts(50, int(random.binomial(50, 0.01))), 0.01
        )
        assert judge({"errors": evidence}, ERRORS) is None
    requests = 0
    while judge({"errors": evidence}, ERRORS) is None:
        bad = Counts(50, int(random.binomial(50, 0.2)))
        evidence = weigh_two_samples(renew(evidence), Counts(500, 5), bad, 0.01)
        requests += 50
    assert requests <= 500


def test_bets_that_start_anew_keep_the_budget() -> None:
    """At the limit for long, with all its new bets, a variant is rolled back as rarely."""
    random = np.random.default_rng(19)
    false = 0
    for _ in range(300):
        evidence = Evidence()
        for _ in range(200):
            low = Counts(180, int(random.binomial(180, 0.01)))
            high = Counts(20, int(random.binomial(20, 0.02)))
            evidence = weigh_two_samples(renew(evidence), low, high, 0.01)
            if judge({"errors": evidence}, ERRORS):
                false += 1
                break
    assert false <= 0.05 * 300
