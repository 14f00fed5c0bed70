"""One model's rollout at work, on engines that reply on command."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from cohort.batching import Outputs
from cohort.errors import (
    Cancelled,
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    NotReady,
    Overloaded,
    RunRefused,
    TooLarge,
)
from cohort.registry import State
from cohort.rollouts import Decision
from cohort.rollouts.checks import MAX_PENDING_CHECKS
from cohort.rollouts.evidence import MIN_BASELINE_REQUESTS, WARM_UP_REQUESTS
from cohort.rollouts.judgement import Counts
from cohort.rollouts.observed import CallerOutcome, ObservedRequest
from tests.rollouts.engines import OUTPUT, LiveRig, inputs, scores
from tests.waiting import until

HALVES = "variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}"
ERRORS = "guard: {max_error_rate_increase: 0.01, min_requests: 50}"
LATENCY = "guard: {max_latency_ratio: 2, min_requests: 50}"

BAD_INPUT = InferenceFailed("index out of range")
BROKEN = InferenceFailed("the device is gone", blames_input=False, device_lost=True)
MEMORY = InferenceFailed("out of memory", blames_input=False)
LATE = DeadlineExceeded(1.0)


@pytest.mark.parametrize("error", [BAD_INPUT, None])
def test_the_caller_is_answered_before_the_outcome_is_told(error: CohortError | None) -> None:
    """The reply may close the lease, or a later call; the outcome is reported once."""
    said: list[object] = []
    for at_once in (True, False):
        observed = ObservedRequest("canary", 2, None, said.append)

        def close() -> None:
            observed.close(error, now=3.0, seconds=1.0)  # noqa: B023 - called in this iteration

        def reply(outputs: Outputs | None, error: CohortError | None) -> None:
            if at_once:  # noqa: B023
                close()
            said.append("answered")

        replied = observed.submitted(inputs(), [OUTPUT], reply, tight_deadline=False)
        replied(None if error else scores(), error)
        if not at_once:
            close()
    assert said[0] == said[2] == "answered"
    assert len(said) == 4
    for outcome in said[1::2]:
        assert isinstance(outcome, CallerOutcome)
        assert (outcome.error, outcome.outputs is None) == (error, error is not None)


def test_a_request_that_never_ran_is_told_of_nowhere() -> None:
    """A request that ended before it ran reports no outcome."""
    said: list[object] = []
    observed = ObservedRequest("canary", 2, None, said.append)
    replied = observed.submitted(inputs(), [OUTPUT], lambda *_: None, tight_deadline=False)
    observed.close(DeadlineExceeded(1.0), now=1.0, seconds=1.0)
    replied(scores(), None)
    assert said == []


def test_a_caller_who_leaves_a_run_is_told_of() -> None:
    """The leave is counted once, whatever the run gives later, if the request was submitted."""
    said: list[CallerOutcome] = []
    for submitted in (True, False):
        observed = ObservedRequest("canary", 2, None, said.append)
        if submitted:
            replied = observed.submitted(inputs(), [OUTPUT], lambda *_: None, tight_deadline=False)
        observed.close(Cancelled("left"), now=9.0, seconds=7.0)
        if submitted:
            replied(scores(), None)
    assert [(one.seconds, one.outputs) for one in said] == [(7.0, None)]


def test_a_ramp_begins_at_its_first_step() -> None:
    """It stays there until its progress is known."""
    ramp = "{stable: {version: 1, weight: 1}, canary: {version: 2, ramp: [1%, 50%]}}"
    rig = LiveRig(f"variants: {ramp}, {ERRORS}")
    assert rig.live.rollout.shares() == {"stable": 0.99, "canary": 0.01}


def test_successes_count_on_their_side() -> None:
    """The baseline's and the candidate's successes count."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores(), times=3)
    rig.respond("canary", scores(), times=2)
    assert rig.weighed() == (3, 0, 2, 0)


@pytest.mark.parametrize("variant", ["stable", "canary"])
def test_a_lost_device_counts_at_once(variant: str) -> None:
    """It is not checked on the other side, where it fails everything as well."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores())
    rig.respond("canary", scores())
    rig.respond(variant, error=BROKEN)
    assert rig.weighed() == ((2, 1, 1, 0) if variant == "stable" else (1, 0, 2, 1))
    assert not any(engine.side_queues for engine in rig.engines.values())


@pytest.mark.parametrize(
    "error", [NotReady("closed"), Overloaded("full"), Cancelled("left"), asyncio.CancelledError()]
)
def test_other_errors_are_not_evidence(error: Exception) -> None:
    """The version did not run the input."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores())
    rig.respond("canary", scores())
    rig.respond("canary", scores(), unwritten=error)
    assert rig.weighed() == (1, 0, 1, 0)
    assert not any(engine.side_queues for engine in rig.engines.values())


@pytest.mark.parametrize("error", [LATE, Cancelled("left")])
@pytest.mark.parametrize("variant", ["stable", "canary"])
def test_a_caller_who_gave_up_after_long_has_seen_a_failure(
    error: CohortError, variant: str
) -> None:
    """A failure takes ten times the baseline's p95, and a second; `slow` has its own limit."""
    rig = LiveRig(f"{HALVES}, guard: {{max_error_rate_increase: 0.01, max_latency_ratio: 2}}")
    rig.respond(variant, error=error, tight_deadline=True, seconds=99.0)
    for name in ("stable", "canary"):
        rig.respond(name, scores(), times=WARM_UP_REQUESTS + 1, seconds=0.2)
    rig.tried = 0.01
    before = rig.weighed()
    assert before[1] == before[3] == 0, "there was nothing yet to tell long from short by"
    for seconds in (0.3, 1.5, 2.5):
        rig.respond(variant, error=error, tight_deadline=True, seconds=seconds)
    after = rig.weighed()
    bad, other = (1, 3) if variant == "stable" else (3, 1)
    assert (after[bad], after[bad - 1] - before[bad - 1], after[other]) == (1, 1, 0)
    slow = rig.live.evidence.candidates["canary"].slow
    counts = {"stable": slow.baseline, "canary": slow.variant}
    assert counts[variant] == Counts(2, 2)
    assert len(rig.engines[2].side_queues) == 0, "what is slow on the baseline counts at once"


@pytest.mark.parametrize("tried", [0.9, None])
def test_what_takes_as_long_on_the_baseline_is_not_evidence(tried: float | None) -> None:
    """Callers whose keys keep them on a candidate send it inputs that take long, or leave."""
    rig = LiveRig(f"{HALVES}, guard: {{max_error_rate_increase: 0.01, max_latency_ratio: 2}}")
    for name in ("stable", "canary"):
        rig.respond(name, scores(), times=WARM_UP_REQUESTS + 1, seconds=0.01)
    before = rig.weighed()
    rig.tried = tried
    for caller in range(200):
        rig.respond("stable", scores(), seconds=0.01)
        rig.respond("canary", scores(), seconds=1.5, caller=2 * caller)
        rig.respond("canary", error=Cancelled("left"), seconds=1.5, caller=2 * caller + 1)
    if tried is None:  # it is unknown, or there is no room to try it
        rig.live.close()
    assert rig.live.judge() == {}
    after = rig.weighed()
    assert (before[3], after[3]) == (0, 0)
    assert rig.live.evidence.candidates["canary"].slow.variant.bad == 0


def test_a_version_that_hangs_is_rolled_back_though_callers_leave() -> None:
    """They leave after three seconds, long before the model's own timeout."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores(), times=WARM_UP_REQUESTS, seconds=0.01)
    rig.live.judge()
    rig.tried = 0.01
    for _ in range(20):
        rig.respond("stable", scores(), seconds=0.01)
        rig.respond("canary", error=Cancelled("left"), seconds=3.0)
    assert 2 in rig.live.judge()


def test_a_tight_deadline_is_not_evidence() -> None:
    """Errors and latency do not count; a timeout of the model does, once the other side answers."""
    rig = LiveRig(f"{HALVES}, {LATENCY}")
    for variant in ("stable", "canary"):
        rig.respond(variant, scores(), times=WARM_UP_REQUESTS)
    rig.live.judge()
    rig.respond("canary", error=LATE, tight_deadline=True)
    assert rig.copies(1) == 0
    rig.respond("canary", error=LATE)
    rig.respond("stable", scores())
    rig.queue(1).answer_all(scores())
    rig.live.judge()
    slow = rig.live.evidence.candidates["canary"].slow
    assert (slow.baseline, slow.variant) == (Counts(1, 0), Counts(1, 1))


@pytest.mark.parametrize(
    "error", [BAD_INPUT, InvalidInput("its outputs are too large"), RunRefused("no"), MEMORY, LATE]
)
@pytest.mark.parametrize(
    ("variant", "other", "counted"),
    [("canary", 1, (1, 0, 2, 1)), ("stable", 2, (2, 1, 1, 0))],
)
def test_an_input_that_fails_on_one_side_only_counts_against_it(
    variant: str, other: int, counted: tuple[float, ...], error: CohortError
) -> None:
    """It counts once the other side has answered it."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores())
    rig.respond("canary", scores())
    rig.respond(variant, error=error)
    assert rig.copies(3 - other) == 0
    assert rig.copies(other) == 1
    assert not rig.queue(other).shadow
    rig.queue(other).answer_all(scores())
    assert rig.weighed() == counted
    assert rig.live.evidence.candidates["canary"].failed_on_both == 0


@pytest.mark.parametrize("variant", ["stable", "canary"])
@pytest.mark.parametrize(
    "error", [InferenceFailed("this, too"), InferenceFailed("broken", blames_input=False)]
)
def test_an_input_that_fails_on_both_sides_is_not_evidence(
    variant: str, error: CohortError
) -> None:
    """An input that fails on both variants is counted separately, not as evidence."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores())
    rig.respond("canary", scores())
    rig.respond(variant, error=BAD_INPUT)
    rig.queue(2 if variant == "stable" else 1).answer_all(error=error)
    assert rig.weighed() == (1, 0, 1, 0)
    assert rig.live.evidence.candidates["canary"].failed_on_both == 1


def test_an_input_that_is_late_on_both_sides_is_not_evidence() -> None:
    """A late copy proves nothing about any other failure."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("canary", error=LATE)
    rig.queue(1).answer_all(error=LATE)
    assert rig.live.evidence.candidates["canary"].failed_on_both == 1
    assert rig.weighed() == (0, 0, 0, 0)


NAN = InferenceFailed("output 'y' has NaN", blames_input=False)
NANS: Outputs = [np.full((1, 3), np.nan, np.float32)]


@pytest.mark.parametrize(("answer", "counted"), [(scores(), 2), (NANS, 1)])
@pytest.mark.parametrize("unwritten", [NAN, ZeroDivisionError()])
def test_an_answer_that_could_not_be_written_is_a_failure(
    answer: Outputs, counted: int, unwritten: Exception
) -> None:
    """The caller got an error, unless the other side's answer cannot be written either."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores())
    rig.respond("canary", scores())
    rig.respond("canary", NANS, unwritten=unwritten)
    rig.queue(1).answer_all(answer)
    assert rig.weighed() == (1, 0, counted, counted - 1)


async def test_a_large_answer_that_could_not_be_written_is_compared_on_a_thread() -> None:
    """Looking for NaN in it takes a while."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    large: Outputs = [np.full((1, 300_000), np.nan, np.float32)]
    rig.respond("canary", large, unwritten=NAN)
    rig.queue(1).answer_all(large)
    evidence = rig.live.evidence.candidates["canary"]
    assert evidence.failed_on_both == 0
    await until(lambda: evidence.failed_on_both == 1)


@pytest.mark.parametrize(("rows", "counted"), [(1, 1), (2, 0)])
def test_an_answer_too_large_to_send_is_compared_by_its_size(rows: int, counted: int) -> None:
    """A canary whose answers grew fails its callers; one that answers as the baseline does not."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores())
    rig.respond("canary", scores(), unwritten=InvalidInput("the model has no classes"))
    assert rig.copies(1) == 0
    large: Outputs = [np.zeros((2, 3), np.float32)]
    rig.respond("canary", large, unwritten=TooLarge("too many bytes"))
    rig.queue(1).answer_all(large if rows == 2 else scores())
    assert rig.weighed() == (1, 0, counted, counted)


def test_a_caller_counts_once_in_a_while() -> None:
    """Its failure also counts once, and only that is checked; unknown callers always count."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores(), times=5, caller=1)
    rig.respond("canary", error=BAD_INPUT, times=5, caller=2)
    rig.respond("canary", scores(), times=3)
    assert rig.copies(1) == 1
    rig.queue(1).answer_all(scores())
    assert rig.weighed() == (1, 0, 4, 1)


@pytest.mark.parametrize("error", [NotReady("closed"), Overloaded("full"), DeadlineExceeded(1.0)])
def test_a_cancelled_check_is_not_evidence(error: CohortError) -> None:
    """The copy found no idle slot."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores())
    rig.respond("canary", scores())
    rig.respond("canary", error=BAD_INPUT)
    rig.queue(1).answer_all(error=error)
    assert rig.weighed() == (1, 0, 1, 0)
    assert rig.live.evidence.candidates["canary"].failed_on_both == 0


def test_a_check_that_the_other_version_refuses_counts_as_failed_on_both() -> None:
    """Its inputs have other specs: nothing runs."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.engines[1].inputs = []
    rig.respond("canary", error=BAD_INPUT)
    assert rig.copies(1) == 0
    assert rig.live.evidence.candidates["canary"].failed_on_both == 1


def test_checks_are_bounded_and_the_others_are_not_evidence() -> None:
    """An outage does not fill the memory."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("canary", error=BAD_INPUT, times=MAX_PENDING_CHECKS + 10)
    assert rig.copies(1) == MAX_PENDING_CHECKS
    rig.states[1] = State.UNLOADING
    rig.queue(1).answer_all(scores())
    rig.respond("canary", error=BAD_INPUT)
    assert rig.copies(1) == 0
    rig.respond("stable", scores())
    assert rig.weighed() == (1, 0, MAX_PENDING_CHECKS, MAX_PENDING_CHECKS)


def test_a_failure_of_the_baseline_is_checked_on_every_serving_candidate() -> None:
    """A candidate that is rolled back is left out."""
    rig = LiveRig(f"{HALVES[:-1]}, other: {{version: 3, weight: 1}}}}, {ERRORS}")
    rig.respond("stable", error=BAD_INPUT)
    assert [rig.copies(version) for version in rig.engines] == [0, 1, 1]
    rig.live.apply_decisions({2: Decision(2, "operator")})
    rig.respond("stable", error=BAD_INPUT)
    assert [rig.copies(version) for version in rig.engines] == [0, 1, 2]


def test_a_failure_of_a_removed_variant_is_ignored() -> None:
    """Its reply comes after the edit."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    for outputs, error in ((None, BAD_INPUT), (scores(), None)):
        rig.configure(f"{HALVES}, {ERRORS}")
        observed = rig.live.observe("canary", 2)
        replied = observed.submitted({}, [], lambda *_: None, tight_deadline=False)
        rig.configure("variants: {stable: {version: 1, weight: 1}}")
        replied(outputs, error)
        observed.close(error, now=1.0, seconds=0.0)
    assert not any(engine.side_queues for engine in rig.engines.values())


# -- the guard


def test_a_failing_candidate_gets_one_verdict() -> None:
    """The verdict is by version; once rolled back, it is not judged."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores(), times=200)
    rig.respond("canary", error=BROKEN, times=2)
    assert rig.live.judge() == {}
    rig.respond("stable", scores())
    rig.respond("canary", error=BROKEN)
    (verdict,) = rig.live.judge().values()
    assert str(verdict) == "errors: 100.00% of 3 requests against 0.00%"
    rig.live.apply_decisions({2: Decision(2, "errors")})
    rig.respond("stable", scores(), times=100)
    rig.respond("canary", error=BROKEN, times=100)
    assert rig.live.judge() == {}


def test_latency_is_from_arrival_to_reply() -> None:
    """A canary that takes longer than twice the baseline's p95; its first requests do not count."""
    rig = LiveRig(f"{HALVES}, {LATENCY}")
    rig.tried = 10.0
    rig.respond("stable", scores(), times=MIN_BASELINE_REQUESTS, seconds=10)
    assert rig.live.judge() == {}
    rig.respond("canary", scores(), times=WARM_UP_REQUESTS, seconds=100)
    rig.respond("stable", scores(), times=200, seconds=10)
    assert rig.live.judge() == {}
    rig.respond("canary", scores(), times=200, seconds=100)
    assert rig.live.judge() == {}
    rig.respond("stable", scores(), times=100, seconds=10)
    assert {version: one.reason for version, one in rig.live.judge().items()} == {2: "latency"}


# -- edits and decisions


def test_an_edit_of_a_limit_or_of_the_baseline_restarts_the_evidence() -> None:
    """An edit of a weight or of the baseline's name does not."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")

    def has_evidence() -> bool:
        return rig.weighed() != (0, 0, 0, 0)

    def fill() -> None:
        rig.respond("stable", scores(), times=5)
        rig.respond("canary", scores(), times=5)
        assert has_evidence()

    fill()
    rig.configure(f"{HALVES.replace('weight: 1', 'weight: 3')}, {ERRORS}")
    assert has_evidence()
    rig.configure(f"{HALVES}, {ERRORS.replace('50', '60')}")
    assert not has_evidence()
    fill()
    rig.configure(f"{HALVES.replace('version: 1', 'version: 3')}, {ERRORS.replace('50', '60')}")
    assert not has_evidence()


def test_a_restored_variant_starts_without_evidence() -> None:
    """It has its traffic, and no evidence against it."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores(), times=100)
    rig.respond("canary", error=BROKEN, times=100)
    assert rig.live.judge().keys() == {2}
    rig.live.apply_decisions({2: Decision(2, "errors")})
    assert {rig.live.choose(None, {1, 2}).name for _ in range(50)} == {"stable"}
    rig.live.apply_decisions({})
    assert {rig.live.choose(None, {1, 2}).name for _ in range(50)} == {"stable", "canary"}
    assert rig.weighed() == (0, 0, 0, 0)


def test_a_decision_survives_an_edit() -> None:
    """Only `apply_decisions` ends it."""
    rig = LiveRig(HALVES)
    rig.live.apply_decisions({2: Decision(2, "operator")})
    rig.configure(HALVES.replace("weight: 1", "weight: 9"))
    assert rig.live.rollout.variants["canary"].rolled_back


def test_side_queues_close_with_their_versions_and_with_the_rollout() -> None:
    """Their copies hold a version."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("canary", error=BAD_INPUT)
    rig.respond("stable", error=BAD_INPUT)
    rig.configure(f"variants: {{stable: {{version: 1, weight: 1}}}}, {ERRORS}")
    assert [rig.queue(number).closed for number in (1, 2)] == [False, True]
    rig.live.close()
    assert rig.queue(1).closed
