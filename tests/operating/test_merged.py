"""What several workers say of themselves, as one answer."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.operating import Readiness, Siblings
from cohort.operating.merged import merge_health, merge_models
from cohort.registry import RESTING
from cohort.workers.link import Link

OWN: dict[str, Any] = {
    "status": "healthy",
    "models": {"m": {"1": "READY", "2": "LOADING"}},
    "problems": ["known"],
}


def said(state: str, reason: str = "", **more: Any) -> dict[str, Any]:
    """How another worker is, with version 1 of m in a state."""
    return {
        "place": 1,
        "pid": 7,
        "ready": True,
        "reason": "",
        "settled": True,
        "problems": [],
        "states": {"m": {"1": [state, reason]}},
        **more,
    }


def test_a_version_is_as_far_as_it_is_in_all_workers() -> None:
    """In the summary and in the list, with the reason; one that rests is loaded on demand."""
    models = {
        "models": [{"name": "m", "versions": [{"version": "1", "state": "READY", "reason": ""}]}]
    }
    for state, reason, seen in [
        ("READY", "", "READY"),
        ("UNAVAILABLE", "no memory", "UNAVAILABLE"),
        ("UNAVAILABLE", RESTING, "READY"),
        ("LOADING", "", "LOADING"),
    ]:
        other = said(state, reason)
        merged = merge_health(OWN, [other], (), whole=True)
        assert merged["models"] == {"m": {"1": seen, "2": "LOADING"}}
        (model,) = merge_models(models, [other])["models"]
        (version,) = model["versions"]
        assert version["state"] == seen
        assert version["reason"] == (f"worker 1: {reason}" if seen != "READY" else "")
    starting = said("LOADING", settled=False)
    assert (
        merge_health(OWN, [said("READY"), starting], (), whole=True)["models"]["m"]["1"] == "READY"
    )


def test_problems_of_all_are_told_to_who_may_see_them() -> None:
    """Each once; a worker that says nothing is one."""
    other = said("READY", problems=["known", "new"])
    merged = merge_health(OWN, [other], [9], whole=True)
    assert merged["problems"] == ["known", "worker 1: new", "process 9 does not say how it is"]
    assert merged["status"] == "degraded"
    assert merged["workers"] == [{"place": 1, "pid": 7, "ready": True, "reason": ""}]
    part = merge_health(OWN, [other], [9], whole=False)
    assert (part["problems"], part["status"]) == (["known"], "healthy")
    assert "workers" not in part


class NoLink(Link):
    """Stands for a link that nothing is asked by."""

    def __init__(self) -> None:
        pass


def worker(pid: int, **more: Any) -> dict[str, Any]:
    """A worker as its parent tells of it."""
    told = {"pid": pid, "place": pid, "retiring": False, "ready": True, "reason": "no"}
    return {**told, "live": True, "ailment": "", "settled": True, **more}


READY, NOT = Readiness(True), Readiness(False, "own")


@pytest.mark.parametrize(
    ("own", "workers", "expected"),
    [
        (READY, [worker(1), worker(2)], READY),
        (NOT, [worker(1), worker(2)], NOT),
        (READY, [worker(1), worker(2, ready=False)], Readiness(False, "worker 2: no")),
        (READY, [worker(1), worker(2, ready=False, settled=False)], READY),
        (READY, [worker(1), worker(2, ready=False, retiring=True)], READY),
        (READY, [worker(1), {"pid": 2, "place": 2, "retiring": False}], READY),
        (NOT, [worker(1, settled=False), worker(2)], READY),
        (NOT, [worker(1, settled=False)], NOT),
        (NOT, [], NOT),
    ],
)
def test_the_host_is_ready_where_all_are_that_connections_are_given_to(
    own: Readiness, workers: list[dict[str, Any]], expected: Readiness
) -> None:
    """One that still starts, or retires, says nothing about it while there are others."""
    siblings = Siblings(1, pid=1)
    siblings.connect(NoLink())
    siblings.take_picture({"workers": workers, "judge": 2})
    assert siblings.readiness(own) == expected
    assert not siblings.judges


def test_a_worker_that_retires_speaks_for_the_host() -> None:
    """It drains, and a probe on its last connection is told how the others are."""
    siblings = Siblings(1, pid=1)
    siblings.connect(NoLink())
    siblings.retiring = True
    siblings.take_picture({"workers": [worker(1, retiring=True), worker(2)], "judge": 2})
    assert siblings.readiness(NOT) == READY


def test_the_host_is_live_where_all_workers_are() -> None:
    """What only a restart mends in one of them is told, with its place."""
    siblings = Siblings(1, pid=1)
    siblings.connect(NoLink())
    siblings.take_picture({"workers": [worker(1), worker(2, live=False, ailment="stuck")]})
    assert siblings.liveness(READY) == Readiness(False, "worker 2: stuck")
    assert siblings.liveness(NOT) == NOT


async def test_a_process_that_is_alone_asks_nobody() -> None:
    """It is what it says, judges by itself and has nothing to wait for."""
    alone = Siblings()
    assert alone.readiness(NOT) == NOT
    assert alone.liveness(READY) == READY
    assert alone.judges
    assert not alone.several
    assert (await alone.ask("health")).answers == ()
    await alone.have_done("load", {"model": "m"})
