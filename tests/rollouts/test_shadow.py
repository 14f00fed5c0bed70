"""A shadow, on engines that reply on command."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cohort.batching import Outputs
from cohort.errors import CohortError, DeadlineExceeded, InferenceFailed, NotReady, Overloaded
from cohort.registry import State
from cohort.rollouts import Compared, Decision, Dropped
from cohort.rollouts.shadow import QUEUE_SIZE
from cohort.rollouts.side_queue import MAX_WAITING_BYTES
from cohort.tensors import Arrays
from tests.rollouts.engines import INPUT, OUTPUT, LiveRig, inputs, scores

ONE = "variants: {stable: {version: 1, weight: 1}}"
GUARD = "guard: {max_disagreement: 0.02, min_requests: 20}"


def rig(shadow: str = "{version: 3}", rest: str = "") -> LiveRig:
    """Version 1 answers, version 3 is its shadow."""
    return LiveRig(f"{ONE}, shadow: {shadow}{rest}")


async def test_outputs_are_compared_one_by_one_and_summed_up() -> None:
    """Compared in one go, reported for each request, in their order."""
    one = rig()
    one.respond("stable", scores(0), times=3)
    queue = one.queue(3)
    assert queue.shadow
    queue.requests[0].answer(scores(1))
    queue.answer_all(scores(0))
    compared = await one.events.wait_for(Compared, 3)
    assert [event.disagrees for event in compared] == [
        True,
        False,
        False,
    ]
    runner = one.live.shadow
    assert runner is not None
    assert (runner.compared, runner.disagreed, runner.failed, runner.dropped) == (3, 1, 0, 0)
    assert (runner.outputs["y"].disagreements, runner.outputs["y"].largest) == (1, 1)


@pytest.mark.parametrize("error", [Overloaded(""), NotReady(""), DeadlineExceeded(1.0)])
def test_a_dropped_copy_is_not_evidence(error: CohortError) -> None:
    """No slot was idle in time, or the version was unloaded."""
    one = rig(rest=f", {GUARD}")
    one.respond("stable", scores())
    one.queue(3).answer_all(error=error)
    assert one.events == [Dropped("m", 3)]
    assert one.live.shadow is not None
    assert (one.live.shadow.compared, one.live.shadow.dropped) == (0, 1)


def test_a_failure_of_the_shadow_is_a_disagreement() -> None:
    """There are no outputs to compare."""
    one = rig()
    one.respond("stable", scores())
    one.queue(3).answer_all(error=InferenceFailed("no"))
    assert one.events == [Compared("m", 3, True, [])]
    assert one.live.shadow is not None
    assert (one.live.shadow.disagreed, one.live.shadow.failed) == (1, 1)


def test_requests_that_failed_or_reached_the_shadows_version_are_not_copied() -> None:
    """There is nothing to compare with, or it would agree with itself."""
    one = LiveRig(
        "variants: {stable: {version: 1, weight: 1}, canary: {version: 3, weight: 1}}, "
        "shadow: {version: 3}"
    )
    one.respond("canary", scores())
    one.respond("stable", error=InferenceFailed("no", device_lost=True))
    assert one.copies(3) == 0


def test_copies_are_bounded_in_number_and_bytes() -> None:
    """Those that find no room are dropped, and the caller does not notice."""
    one = rig()
    one.respond("stable", scores(), times=QUEUE_SIZE + 36)
    assert one.copies(3) == QUEUE_SIZE
    assert one.events == [Dropped("m", 3)] * 36
    runner = one.live.shadow
    assert runner is not None
    one.queue(3).answer_all(error=NotReady(""))
    one.events.clear()
    large: Arrays = {INPUT.name: np.zeros((MAX_WAITING_BYTES // 4, 1), np.float32)}
    runner.offer(large, [OUTPUT], scores())
    assert one.events == []
    runner.offer(inputs(), [OUTPUT], scores())
    assert one.events == [Dropped("m", 3)]
    one.queue(3).answer_all(error=NotReady(""))
    one.events.clear()
    runner.offer(inputs(), [OUTPUT], scores())
    assert one.events == []


def test_a_shadow_that_is_not_ready_drops_its_copies() -> None:
    """It drops them until it is ready."""
    one = rig()
    one.states[3] = State.LOADING
    one.respond("stable", scores())
    assert one.events == [Dropped("m", 3)]
    one.states[3] = State.READY
    one.respond("stable", scores())
    assert one.copies(3) == 1


def test_a_copy_holds_its_version() -> None:
    """Unloading waits for it."""
    one = rig()
    one.respond("stable", scores(), times=2)
    assert one.engines[3].leases.count == 2
    one.queue(3).answer_all(error=NotReady(""))
    assert one.engines[3].leases.count == 0


async def test_answers_that_wait_to_be_compared_are_bounded() -> None:
    """Twice a queue of them may wait; any further one is dropped."""
    one = rig()
    for _ in range(3):
        one.respond("stable", scores(), times=QUEUE_SIZE)
        one.queue(3).answer_all(scores())
    assert one.events == [Dropped("m", 3)] * QUEUE_SIZE
    assert len(await one.events.wait_for(Compared, 2 * QUEUE_SIZE)) == 2 * QUEUE_SIZE


async def test_large_outputs_are_compared_on_a_thread() -> None:
    """The outcome is the same."""
    one = rig()
    large: Outputs = [np.zeros((1, 300_000), np.float32)]
    one.respond("stable", large, times=2)
    one.queue(3).answer_all(large)
    compared = await one.events.wait_for(Compared, 2)
    assert not any(event.disagrees for event in compared)


# -- the guard


def fail(one: LiveRig, times: int) -> None:
    """Answer a number of copies that disagree."""
    one.respond("stable", scores(), times=times)
    one.queue(3).answer_all(error=InferenceFailed("no"))


def test_a_disagreeing_shadow_gets_one_verdict_after_min_requests() -> None:
    """Nothing is copied once it is stopped."""
    one = rig(rest=f", {GUARD}")
    for _ in range(19):  # each judged alone, and so a unit
        fail(one, 1)
        assert one.live.judge() == {}
    fail(one, 1)
    assert {version: verdict.reason for version, verdict in one.live.judge().items()} == {
        3: "disagreement"
    }
    one.live.apply_decisions({3: Decision(3, "disagreement")})
    assert one.live.judge() == {}
    one.respond("stable", scores())
    assert one.copies(3) == 0


def test_each_comparison_is_weighed_once() -> None:
    """Each call adds only new ones."""
    one = rig(rest=f", {GUARD}")
    fail(one, 5)
    for _ in range(10):
        assert one.live.judge() == {}
    runner = one.live.shadow
    assert runner is not None
    assert (runner.disagreement.variant.total, runner.disagreement.variant.bad) == (5, 5)


def test_without_a_limit_nothing_is_judged() -> None:
    """Without a limit for disagreement, a shadow is never judged."""
    one = rig(rest=", guard: {max_error_rate_increase: 0.01, min_requests: 1}")
    fail(one, 60)
    assert one.live.judge() == {}


def test_a_changed_guard_forgets_the_evidence_and_not_the_counters() -> None:
    """Another limit is another question."""
    one = rig(rest=f", {GUARD}")
    fail(one, 10)
    one.live.judge()
    fail(one, 10)
    one.configure(f"{ONE}, shadow: {{version: 3}}, {GUARD.replace('0.02', '0.03')}")
    runner = one.live.shadow
    assert runner is not None
    assert one.live.judge() == {}
    assert (runner.disagreement.variant.total, runner.compared) == (0, 20)


def test_a_restored_shadow_starts_anew() -> None:
    """Its counters, examples and evidence start empty."""
    one = rig(rest=f", {GUARD}")
    fail(one, 30)
    one.live.apply_decisions({3: Decision(3, "disagreement")})
    stopped = one.live.shadow
    one.live.apply_decisions({})
    assert one.live.shadow is not None
    assert one.live.shadow is not stopped
    assert one.live.shadow.compared == 0
    assert one.queue(3).closed
    one.respond("stable", scores())
    assert one.copies(3) == 1


def test_a_decision_about_another_version_does_not_affect_the_shadow() -> None:
    """The end of that decision does not affect it either."""
    one = LiveRig(
        "variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}, "
        "shadow: {version: 3}"
    )
    runner = one.live.shadow
    one.live.apply_decisions({2: Decision(2, "errors")})
    one.live.apply_decisions({})
    assert one.live.shadow is runner


# -- edits


def test_a_new_sample_keeps_the_runner_and_a_new_version_replaces_it() -> None:
    """The copies that wait for the old version are cancelled."""
    one = rig()
    one.respond("stable", scores())
    runner = one.live.shadow
    one.configure(f"{ONE}, shadow: {{version: 3, sample: 0}}")
    assert one.live.shadow is runner
    one.respond("stable", scores(), times=20)
    assert one.copies(3) == 1
    one.configure(f"{ONE}, shadow: {{version: 2}}")
    assert one.queue(3).closed
    assert one.live.shadow is not None
    assert one.live.shadow.version == 2
    one.configure(ONE)
    assert one.live.shadow is None


# -- examples


async def test_the_last_requests_that_differed_are_kept_newest_first() -> None:
    """Those that agreed are not."""
    one = rig("{version: 3, keep_examples: 2}")
    runner = one.live.shadow
    assert runner is not None
    for value, best in [(1.0, 1), (2.0, 2), (3.0, 0), (4.0, 1)]:
        runner.offer(inputs(value), [OUTPUT], scores(0))
        one.queue(3).answer_all(scores(best))
    await one.events.wait_for(Compared, 4)
    examples = runner.examples()
    assert [example["inputs"]["x"] for example in examples] == [[[4.0]], [[2.0]]]
    assert examples[0]["answered"] == {"y": [[1, 0, 0]]}
    assert examples[0]["shadow"] == {"y": [[0, 1, 0]]}
    assert (examples[0]["disagrees"], examples[0]["failure"]) == (["y"], "")


def test_examples_of_other_keys_are_forgotten_with_an_edit() -> None:
    """What must be redacted now was not then."""
    one = rig("{version: 3, keep_examples: 2}")
    fail(one, 1)
    assert one.live.shadow is not None
    assert len(one.live.shadow.examples()) == 1
    one.configure(f"{ONE}, shadow: {{version: 3, keep_examples: 2, sample: 0.5}}")
    assert len(one.live.shadow.examples()) == 1
    one.configure(f"{ONE}, shadow: {{version: 3, keep_examples: 2, redact: [x]}}")
    assert one.live.shadow.examples() == []


async def test_any_bit_counts_where_the_shadow_is_to_be_exact() -> None:
    """Otherwise only another decision counts; evidence before the edit does not."""
    one = rig("{version: 3, exact: true}", f", {GUARD}")
    (answered,) = scores(0)
    for answer in (answered, np.nextafter(answered, np.inf, dtype=answered.dtype)):
        one.respond("stable", [answered])
        one.queue(3).answer_all([answer])
    compared = await one.events.wait_for(Compared, 2)
    assert [event.disagrees for event in compared] == [False, True]
    runner = one.live.shadow
    assert runner is not None
    before = runner.disagreement
    runner.configure(replace(runner.shadow, sample=0.5))
    assert runner.disagreement is before
    runner.configure(replace(runner.shadow, exact=False))
    assert runner.disagreement is not before
