"""Notifications of events to an operator's receivers."""

from __future__ import annotations

import pytest

from cohort.process.notifications import notification_of, notification_of_unbatched
from cohort.registry import VersionUnbatched
from cohort.rollouts import RampMoved, Restored, RolledBack, RolloutEvent

ROLLED_BACK = RolledBack("m", 2, ("canary",), False, "errors", "4 % of 9", True, "m.2")


def ramp(step: int, percent: float = 25.0, *, run: str = "run", here: bool = True) -> RampMoved:
    """Return a move of a ramp of three steps."""
    return RampMoved("m", 2, "canary", step, 3, percent, run, here)


def test_a_rollback_is_told_with_its_reason() -> None:
    """It has the form of the guide."""
    told = notification_of(ROLLED_BACK)
    assert told is not None
    replica = told.data["replica"]
    assert isinstance(replica, str)
    assert replica
    assert (told.kind, told.data) == (
        "rollout.rolled_back",
        {
            "model": "m",
            "version": "2",
            "variants": ["canary"],
            "shadow_stopped": False,
            "reason": "errors",
            "detail": "4 % of 9",
            "replica": replica,
        },
    )


def test_answers_that_depend_on_who_else_asked_are_told() -> None:
    """One notification is sent for a version and a reason, however many replicas see it."""
    event = VersionUnbatched("m", 2, "rows influence each other")
    told = notification_of_unbatched(event)
    assert {**told.data, "replica": ""} == {
        "model": "m",
        "version": "2",
        "reason": "rows influence each other",
        "replica": "",
    }
    assert told.kind == "model.rows_mixed"
    assert told.id == notification_of_unbatched(event).id
    assert told.id != notification_of_unbatched(event._replace(number=3)).id


@pytest.mark.parametrize(
    ("event", "kind", "step"),
    [
        (ramp(1), "rollout.ramp_step", 2),
        (ramp(2), "rollout.ramp_step", 3),
        (ramp(3), "rollout.ramp_finished", 3),
        (ramp(3, 100), "rollout.ramp_promoted", 3),
        (ramp(2, 100), "rollout.ramp_step", 3),
    ],
)
def test_a_ramps_move_is_told_by_what_it_means(event: RampMoved, kind: str, step: int) -> None:
    """A step, the end of the last one, or all callers."""
    told = notification_of(event)
    assert told is not None
    assert told.data["replica"]
    assert (told.kind, {**told.data, "replica": ""}) == (
        kind,
        {
            "model": "m",
            "version": "2",
            "variant": "canary",
            "percent": event.percent,
            "step": step,
            "steps": 3,
            "replica": "",
        },
    )


@pytest.mark.parametrize(
    "event",
    [
        Restored("m", 2, ("canary",)),
        ROLLED_BACK._replace(decided_here=False),
        ramp(1, here=False),
    ],
)
def test_what_another_replica_tells_is_not_told_twice(event: RolloutEvent) -> None:
    """The end of a rollback by an operator is not notified either."""
    assert notification_of(event) is None


def test_an_id_is_the_same_for_the_same_move_only() -> None:
    """If two replicas report the same move, a receiver can drop the second report."""
    events: list[RolloutEvent] = [
        ROLLED_BACK,
        ROLLED_BACK._replace(incident="m.2.a"),
        ramp(1),
        ramp(2),
    ]
    events += [ramp(1, run="next"), ramp(3), ramp(3, 100)]
    ids = [told.id for event in [*events, *events] if (told := notification_of(event))]
    assert len(set(ids)) == len(events)
    assert ids[: len(events)] == ids[len(events) :]
    assert all(one.startswith("msg_") for one in ids)
