"""Health of a process, and its effects."""

from __future__ import annotations

import pytest

from cohort.operating import ProcessHealth
from cohort.operating.health import LAG_CHECKS, LAG_SECONDS
from cohort.scheduling import FAULTS, Fault
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.fakes import exposed, make_metrics
from tests.planes import health_of, make_control_plane

READY = {"m": [make_entry(1, ControlledEngine())]}
LATE = 2 * LAG_SECONDS
STUCK = Fault("run_stuck", "a run has not stopped", "model m, version 1")
LOST = Fault("device_lost", "cuda:0 failed: it fell off the bus", lasting=True)


def test_an_event_loop_that_is_late_look_after_look_is_a_trouble() -> None:
    """A single pause is none, however long; one look in time ends it."""
    health = ProcessHealth(lambda patience: [])
    health.observe_lag(100 * LATE)
    assert health.faults() == []
    for _ in range(LAG_CHECKS - 1):
        assert health.faults() == []
        health.observe_lag(LATE)
    (fault,) = health.faults()
    assert (fault.kind, fault.lasting) == ("loop_lagging", False)
    assert f"{LATE:.1f} s" in fault.text
    health.observe_lag(0.0)
    assert health.faults() == []


@pytest.mark.parametrize(("fault", "live"), [(STUCK, True), (LOST, False)])
async def test_a_process_in_trouble_is_not_ready(fault: Fault, live: bool) -> None:
    """A process with a fault is not ready; it is live unless only a restart fixes the fault."""
    registry = make_registry(READY)
    plane = make_control_plane(registry, make_metrics(), faults=lambda: [fault])
    readiness = plane.readiness()
    assert (readiness.ready, readiness.reason) == (False, str(fault))
    assert plane.liveness().ready is live
    assert plane.liveness().reason == ("" if live else fault.text)
    assert (await health_of(plane))["reason"] == str(fault)


def test_callers_are_told_of_no_model_that_they_may_not_see() -> None:
    """The reason is without it."""
    plane = make_control_plane(make_registry(READY), make_metrics(), faults=lambda: [STUCK])
    seen = plane.readiness(plane.limited_to(frozenset({"other"})))
    assert (seen.ready, seen.reason) == (False, STUCK.text)


def test_each_kind_of_trouble_is_a_metric() -> None:
    """The value is 0 for a kind that is absent."""
    text = exposed(make_metrics(faults=[STUCK]))
    for kind in FAULTS:
        assert f'server_unhealthy{{reason="{kind}"}} {float(kind == "run_stuck")}' in text
