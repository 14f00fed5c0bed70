"""The health of several workers, merged into one answer."""

from __future__ import annotations

from typing import Any

from cohort.registry import RESTING
from cohort.workers.merged_health import merge_health, merge_models

OWN: dict[str, Any] = {
    "status": "healthy",
    "models": {"m": {"1": "READY", "2": "LOADING"}},
    "problems": ["known"],
}


def said(state: str, reason: str = "", **more: Any) -> dict[str, Any]:
    """Return the health of another worker, with version 1 of m in a state."""
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
    """The summary and the list have the reason; a version that rests is loaded on demand."""
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
    """Each problem is listed once; a silent worker is a problem."""
    other = said("READY", problems=["known", "new"])
    merged = merge_health(OWN, [other], [9], whole=True)
    assert merged["problems"] == ["known", "worker 1: new", "process 9 does not answer"]
    assert merged["status"] == "degraded"
    assert merged["workers"] == [{"place": 1, "pid": 7, "ready": True, "reason": ""}]
    part = merge_health(OWN, [other], [9], whole=False)
    assert (part["problems"], part["status"]) == (["known"], "healthy")
    assert "workers" not in part
