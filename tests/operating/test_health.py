"""Health of a process, and its effects."""

from __future__ import annotations

import pytest

from cohort.operating import ProcessHealth
from cohort.operating.health import LAG_LOOKS, LAG_SECONDS
from cohort.scheduling import TROUBLES, Trouble
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.fakes import exposed, make_metrics
from tests.planes import health_of, make_control_plane

READY = {"m": [make_entry(1, ControlledEngine())]}
LATE = 2 * LAG_SECONDS
STUCK = Trouble("run_stuck", "a run has not stopped", "model m, version 1")
LOST = Trouble("device_lost", "cuda:0 failed: it fell off the bus", lasting=True)


def test_an_event_loop_that_is_late_look_after_look_is_a_trouble() -> None:
    """A single pause is none, however long; one look in time ends it."""
    health = ProcessHealth(lambda patience: [])
    health.observe_lag(100 * LATE)
    assert health.troubles() == []
    for _ in range(LAG_LOOKS - 1):
        assert health.troubles() == []
        health.observe_lag(LATE)
    (trouble,) = health.troubles()
    assert (trouble.kind, trouble.lasting) == ("loop_lagging", False)
    assert f"{LATE:.1f} s" in trouble.text
    health.observe_lag(0.0)
    assert health.troubles() == []


@pytest.mark.parametrize(("trouble", "live"), [(STUCK, True), (LOST, False)])
async def test_a_process_in_trouble_is_not_ready(trouble: Trouble, live: bool) -> None:
    """The reason is given; the process is live unless only a restart fixes it."""
    registry = make_registry(READY)
    plane = make_control_plane(registry, make_metrics(), troubles=lambda: [trouble])
    readiness = plane.readiness()
    assert (readiness.ready, readiness.reason) == (False, str(trouble))
    assert plane.liveness().ready is live
    assert plane.liveness().reason == ("" if live else trouble.text)
    assert (await health_of(plane))["reason"] == str(trouble)


def test_callers_are_told_of_no_model_that_they_may_not_see() -> None:
    """The reason is without it."""
    plane = make_control_plane(make_registry(READY), make_metrics(), troubles=lambda: [STUCK])
    seen = plane.readiness(plane.seen_by(frozenset({"other"})))
    assert (seen.ready, seen.reason) == (False, STUCK.text)


def test_each_kind_of_trouble_is_a_metric() -> None:
    """The value is 0 for a kind that is absent."""
    text = exposed(make_metrics(troubles=[STUCK]))
    for kind in TROUBLES:
        assert f'server_unhealthy{{reason="{kind}"}} {float(kind == "run_stuck")}' in text
