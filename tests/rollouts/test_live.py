"""One model's rollout at work, on engines that reply when told."""

from __future__ import annotations

from time import monotonic

import pytest

from app.batching import Outputs
from app.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    NotReady,
    Overloaded,
)
from app.registry import State
from app.rollouts import Decision
from app.rollouts.evidence import MIN_BASELINE_REQUESTS
from app.rollouts.live import MAX_PENDING_CHECKS
from tests.rollouts.engines import LiveRig, scores

HALVES = "variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}"
ERRORS = "guard: {max_error_rate_increase: 0.01, min_requests: 50}"
LATENCY = "guard: {max_latency_ratio: 2, min_requests: 50}"

BAD_INPUT = InferenceFailed("index out of range")
BROKEN = InferenceFailed("out of memory", blames_input=False)


def test_the_caller_is_answered_before_its_outcome_is_counted() -> None:
    """Exactly once, with the outputs or the error."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    calls: list[tuple[Outputs | None, CohortError | None, int]] = []
    outputs = scores()
    rig.respond(
        "canary",
        error=BAD_INPUT,
        reply=lambda *of: calls.append((*of, rig.copies(1))),
    )
    rig.respond("canary", outputs, reply=lambda *of: calls.append((*of, rig.copies(1))))
    assert calls == [(None, BAD_INPUT, 0), (outputs, None, 1)]


def test_successes_count_on_their_side() -> None:
    """The baseline's and the candidate's."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores(), times=3)
    rig.respond("canary", scores(), times=2)
    assert rig.weighed() == (3, 0, 2, 0)


@pytest.mark.parametrize("error", [BROKEN, DeadlineExceeded(1.0)])
@pytest.mark.parametrize("variant", ["stable", "canary"])
def test_failures_that_do_not_blame_the_input_count_at_once(
    variant: str, error: CohortError
) -> None:
    """They are not checked on the other side."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores())
    rig.respond("canary", scores())
    rig.respond(variant, error=error)
    assert rig.weighed() == ((2, 1, 1, 0) if variant == "stable" else (1, 0, 2, 1))
    assert not any(engine.side_queues for engine in rig.engines.values())


@pytest.mark.parametrize("error", [NotReady("closed"), Overloaded("full"), None])
def test_other_errors_are_not_evidence(error: CohortError | None) -> None:
    """The version did not run the input."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores())
    rig.respond("canary", scores())
    rig.respond("canary", error=error)
    assert rig.weighed() == (1, 0, 1, 0)


def test_a_tight_deadline_is_not_evidence() -> None:
    """Neither of errors nor of latency."""
    rig = LiveRig(f"{HALVES}, {LATENCY}")
    for variant in ("stable", "canary"):
        rig.respond(variant, scores(), times=MIN_BASELINE_REQUESTS, started=monotonic())
    rig.live.judge()
    rig.respond("stable", scores())
    rig.respond("canary", error=DeadlineExceeded(1.0), tight_deadline=True)
    rig.live.judge()
    assert rig.live.evidence.candidates["canary"].slow.evidence.variant.total == 0
    rig.respond("canary", error=DeadlineExceeded(1.0))
    rig.live.judge()
    assert rig.live.evidence.candidates["canary"].slow.evidence.variant.bad == 1


@pytest.mark.parametrize("error", [BAD_INPUT, InvalidInput("no such index")])
@pytest.mark.parametrize(
    ("variant", "other", "counted"),
    [("canary", 1, (1, 0, 2, 1)), ("stable", 2, (2, 1, 1, 0))],
)
def test_an_input_that_fails_on_one_side_only_counts_against_it(
    variant: str, other: int, counted: tuple[int, ...], error: CohortError
) -> None:
    """Once the other side has answered it."""
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
    """It is counted separately."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores())
    rig.respond("canary", scores())
    rig.respond(variant, error=BAD_INPUT)
    rig.queue(2 if variant == "stable" else 1).answer_all(error=error)
    assert rig.weighed() == ((2, 0, 1, 0) if variant == "stable" else (1, 0, 2, 0))
    assert rig.live.evidence.candidates["canary"].failed_on_both == 1


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
    """Not on one that is rolled back."""
    rig = LiveRig(f"{HALVES[:-1]}, other: {{version: 3, weight: 1}}}}, {ERRORS}")
    rig.respond("stable", error=BAD_INPUT)
    assert [rig.copies(version) for version in rig.engines] == [0, 1, 1]
    rig.live.apply_decisions({2: Decision(2, "operator")})
    rig.respond("stable", error=BAD_INPUT)
    assert [rig.copies(version) for version in rig.engines] == [0, 1, 2]


def test_a_failure_of_a_removed_variant_is_ignored() -> None:
    """Its reply comes after the edit."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    wrapped = rig.live.observe_reply(
        "canary", 2, [], {}, lambda *_: None, started=0.0, tight_deadline=False
    )
    rig.configure("variants: {stable: {version: 1, weight: 1}}")
    wrapped(None, BAD_INPUT)
    wrapped(scores(), None)
    assert not any(engine.side_queues for engine in rig.engines.values())


# -- the guard


def test_a_failing_candidate_gets_one_verdict() -> None:
    """By version; once it is rolled back it is not judged."""
    rig = LiveRig(f"{HALVES}, {ERRORS}")
    rig.respond("stable", scores(), times=200)
    rig.respond("canary", error=BROKEN, times=49)
    assert rig.live.judge() == {}
    rig.respond("stable", scores())
    rig.respond("canary", error=BROKEN)
    (verdict,) = rig.live.judge().values()
    assert verdict.reason == "errors"
    rig.live.apply_decisions({2: Decision(2, "errors")})
    rig.respond("stable", scores(), times=100)
    rig.respond("canary", error=BROKEN, times=100)
    assert rig.live.judge() == {}


def test_latency_is_from_arrival_to_reply() -> None:
    """A canary that takes longer than twice the baseline's p95."""
    rig = LiveRig(f"{HALVES}, {LATENCY}")
    now = monotonic()
    rig.respond("stable", scores(), times=MIN_BASELINE_REQUESTS, started=now - 10)
    assert rig.live.judge() == {}
    rig.respond("stable", scores(), times=200, started=now - 10)
    rig.respond("canary", scores(), times=200, started=now - 100)
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
    """With its traffic, and without the evidence against it."""
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
