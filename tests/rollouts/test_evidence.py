"""Outcomes that count for and against variants, and the time of a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.rollouts import Guard, Rollout, Variant
from cohort.rollouts.evidence import (
    MIN_BASELINE_REQUESTS,
    WARM_UP_REQUESTS,
    RolloutEvidence,
    VariantEvidence,
)
from cohort.rollouts.judgement import Counts, Evidence, Verdict, weigh_two_samples
from cohort.rollouts.units import SLOT_SECONDS

ROLLOUT = Rollout(
    "m",
    {
        "stable": Variant("stable", 1, 1),
        "canary": Variant("canary", 2, 1),
        "other": Variant("other", 3, 1),
    },
    "stable",
)
ERRORS = Guard(max_error_rate_increase=0.01, min_requests=50)
LATENCY = Guard(max_latency_ratio=2.0, min_requests=50)


class Slots:
    """Gives each outcome a separate time."""

    now = 0.0

    def next(self) -> float:
        self.now += SLOT_SECONDS * 1.5
        return self.now


slots = Slots()


def count(evidence: RolloutEvidence, variant: str, good: int, bad: int = 0) -> None:
    """Count outcomes of a variant, each a unit."""
    for number in range(good + bad):
        evidence.count_outcome(variant, bad=number >= good, now=slots.next())


def reasons(broken: dict[int, Verdict]) -> dict[int, str]:
    """Return the limit that each version broke."""
    return {version: verdict.reason for version, verdict in broken.items()}


def errors(evidence: RolloutEvidence, name: str) -> tuple[Counts, Counts]:
    """Return the counts of the baseline and of a candidate in the evidence."""
    weighed = evidence.candidates[name].errors
    assert (weighed.evidence.baseline, weighed.evidence.variant) in (
        (weighed.baseline, weighed.variant),
        (Counts(), Counts()),
    )
    return weighed.baseline, weighed.variant


def test_the_baselines_outcomes_count_for_everyone_a_candidates_for_itself() -> None:
    """Each counts in its own kind; outcomes of an unknown variant do not count."""
    evidence = RolloutEvidence(ROLLOUT, ERRORS)
    count(evidence, "stable", 9, 1)
    count(evidence, "canary", 6, 1)
    count(evidence, "other", 5)
    count(evidence, "gone", 5, 5)
    assert evidence.judge(()) == {}
    assert errors(evidence, "canary") == (Counts(10, 1), Counts(7, 1))
    assert errors(evidence, "other") == (Counts(10, 1), Counts(5, 0))


def test_the_candidate_that_fails_more_often_is_told_with_its_reason() -> None:
    """No other candidate is reported; a failing baseline counts against no candidate."""
    evidence = RolloutEvidence(ROLLOUT, ERRORS)
    count(evidence, "stable", 200)
    count(evidence, "canary", 30, 30)
    count(evidence, "other", 60)
    assert reasons(evidence.judge(())) == {2: "errors"}
    evidence = RolloutEvidence(ROLLOUT, ERRORS)
    count(evidence, "stable", 30, 30)
    count(evidence, "canary", 200)
    count(evidence, "other", 200)
    assert evidence.judge(()) == {}


def test_few_failures_of_the_candidate_are_enough_where_the_baseline_has_none() -> None:
    """`min_requests` is for latency and disagreement."""
    evidence = RolloutEvidence(ROLLOUT, ERRORS)
    count(evidence, "stable", 500)
    count(evidence, "canary", 0, 2)
    assert evidence.judge(()) == {}
    count(evidence, "stable", 1)
    count(evidence, "canary", 0, 1)
    assert reasons(evidence.judge(())) == {2: "errors"}


def test_without_a_limit_nothing_is_weighed() -> None:
    """A guard on latency only does not judge errors."""
    evidence = RolloutEvidence(ROLLOUT, LATENCY)
    count(evidence, "stable", 200)
    count(evidence, "canary", 0, 200)
    assert evidence.judge(()) == {}
    assert evidence.candidates["canary"].errors.evidence == Evidence()


@pytest.mark.parametrize("versions", [(2,), (2, 3)])
def test_versions_that_are_rolled_back_are_not_judged_again(versions: tuple[int, ...]) -> None:
    """Otherwise each tick would decide the same again."""
    evidence = RolloutEvidence(ROLLOUT, ERRORS)
    count(evidence, "stable", 200)
    for name in ("canary", "other"):
        count(evidence, name, 0, 100)
    assert evidence.judge(versions).keys() == {2, 3} - set(versions)


def test_a_candidate_of_the_baselines_version_is_not_judged() -> None:
    """A rollback would take the baseline's version out."""
    variants = {**ROLLOUT.variants, "canary": Variant("canary", 1, 1)}
    evidence = RolloutEvidence(replace(ROLLOUT, variants=variants), ERRORS)
    count(evidence, "stable", 200)
    count(evidence, "canary", 0, 100)
    assert evidence.judge(()) == {}


# -- latency


def warmed_up() -> RolloutEvidence:
    """Evidence against candidates that are beyond their first requests."""
    evidence = RolloutEvidence(ROLLOUT, LATENCY)
    for variant in ("canary", "other"):
        for _ in range(WARM_UP_REQUESTS + 1):
            assert evidence.admit(variant, None, slots.next(), bad=False)
    return evidence


def answer(evidence: RolloutEvidence, variant: str, seconds: float, times: int) -> None:
    """Count a number of requests of one latency."""
    for _ in range(times):
        evidence.count_latency(variant, seconds, now=slots.next())


def test_slow_is_relative_to_the_baselines_p95_once_that_means_something() -> None:
    """It needs enough answers of the baseline, and is fixed between two looks."""
    evidence = warmed_up()
    answer(evidence, "stable", 0.01, MIN_BASELINE_REQUESTS - 1)
    answer(evidence, "canary", 1.0, 500)
    evidence.judge(())
    assert evidence.slow_from is None
    answer(evidence, "stable", 0.01, 1)
    assert evidence.slow_from is None
    evidence.judge(())
    assert evidence.slow_from == pytest.approx(0.02, rel=0.06)
    answer(evidence, "stable", 1.0, 500)
    assert evidence.slow_from == pytest.approx(0.02, rel=0.06)
    assert evidence.candidates["canary"].slow.variant == Counts()


def test_a_candidate_that_is_slow_more_often_is_told() -> None:
    """Beyond the limit counts as slow, at the limit does not."""
    evidence = warmed_up()
    answer(evidence, "stable", 0.01, 200)
    evidence.judge(())
    limit = evidence.slow_from
    assert limit is not None
    answer(evidence, "stable", 0.01, 200)
    answer(evidence, "canary", limit * 1.01, 100)
    answer(evidence, "other", limit, 100)
    assert reasons(evidence.judge(())) == {2: "latency"}
    assert evidence.candidates["other"].slow.variant == Counts(100, 0)


def test_what_makes_everybody_slow_speaks_against_nobody() -> None:
    """No variant is rolled back if all variants, the baseline included, become slow."""
    evidence = warmed_up()
    answer(evidence, "stable", 0.01, 200)
    evidence.judge(())
    for name in ROLLOUT.variants:
        answer(evidence, name, 1.0, 200)
    assert evidence.judge(()) == {}
    assert evidence.candidates["canary"].slow.baseline == Counts(200, 200)


def test_a_candidate_may_be_slow_five_percent_more_often() -> None:
    """A block with that difference is weighed."""
    evidence = VariantEvidence()
    for number in range(100):
        evidence.slow.count(baseline=True, bad=number < 5, now=slots.next())
        evidence.slow.count(baseline=False, bad=number < 40, now=slots.next())
    evidence.judge(LATENCY)
    expected = weigh_two_samples(Evidence(), Counts(100, 5), Counts(100, 40), 0.05)
    assert evidence.slow.evidence == expected


def test_the_first_requests_of_a_candidate_are_slow_with_impunity() -> None:
    """The baseline's latency does not count for it then either: both are of the same time."""
    evidence = RolloutEvidence(ROLLOUT, LATENCY)
    answer(evidence, "stable", 0.01, 200)
    evidence.judge(())
    for number in range(WARM_UP_REQUESTS + 5):
        evidence.admit("canary", None, slots.next(), bad=False)
        answer(evidence, "canary", 1.0, 1)
        answer(evidence, "stable", 0.01, 1)
        evidence.judge(())
        after = max(number + 1 - WARM_UP_REQUESTS, 0)
        slow = evidence.candidates["canary"].slow
        assert (slow.baseline, slow.variant) == (Counts(after, 0), Counts(after, after))


def test_a_caller_counts_in_each_variant_by_itself() -> None:
    """For each request the result shows if it counts."""
    evidence = RolloutEvidence(ROLLOUT, ERRORS)
    asked = [(variant, 7, number * 0.1) for number in range(3) for variant in ("stable", "canary")]
    admitted = [evidence.admit(*one, bad=False) for one in asked]
    assert admitted == [True, True, False, False, False, False]
    assert evidence.candidates["canary"].answered == 3
    assert evidence.admit("canary", 8, 0.3, bad=True)


def test_without_a_limit_on_latency_nothing_is_slow() -> None:
    """This holds for any number of answers."""
    evidence = RolloutEvidence(ROLLOUT, ERRORS)
    answer(evidence, "stable", 0.01, 500)
    evidence.judge(())
    assert evidence.slow_from is None


# -- what forgets


def test_an_edit_keeps_the_evidence_of_versions_that_stay() -> None:
    """Weights do not matter; another version, a new variant and a new baseline begin from zero."""
    evidence = RolloutEvidence(ROLLOUT, ERRORS)
    before = dict(evidence.candidates)
    variants = {
        "stable": Variant("stable", 1, 7),
        "canary": Variant("canary", 2, 9),
        "other": Variant("other", 4, 1),
        "new": Variant("new", 3, 1),
    }
    evidence.follow(replace(ROLLOUT, variants=variants))
    assert evidence.candidates.keys() == {"canary", "other", "new"}
    assert evidence.candidates["canary"] is before["canary"]
    assert evidence.candidates["other"] is not before["other"]
    assert evidence.candidates["new"] not in before.values()


def test_a_variant_that_leaves_takes_its_evidence_along() -> None:
    """When it returns, it begins from zero."""
    evidence = RolloutEvidence(ROLLOUT, ERRORS)
    before = evidence.candidates["canary"]
    variants = {name: one for name, one in ROLLOUT.variants.items() if name != "canary"}
    evidence.follow(replace(ROLLOUT, variants=variants))
    assert evidence.candidates.keys() == {"other"}
    count(evidence, "canary", 0, 5)
    evidence.follow(ROLLOUT)
    assert evidence.candidates["canary"] is not before
    assert evidence.judge(()) == {}


def test_a_version_that_is_let_back_in_is_judged_anew() -> None:
    """No other version is judged again."""
    evidence = RolloutEvidence(ROLLOUT, ERRORS)
    before = dict(evidence.candidates)
    evidence.restart(2)
    assert evidence.candidates["canary"] is not before["canary"]
    assert evidence.candidates["other"] is before["other"]
