"""Readiness of a process for traffic, and its health."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.errors import NotReady
from cohort.operating import ControlPlane, Lifecycle, Readiness
from cohort.operating.drawings import Drawable
from cohort.registry import RESTING, UNLOADED, ModelEntry, Registry, State
from cohort.tensors import TensorSpec
from tests.engines import ControlledEngine, X, make_catalog, make_entry, make_registry
from tests.fakes import make_metrics
from tests.planes import health_of, make_control_plane
from tests.waiting import PATIENCE

Z = TensorSpec("z", "FP32", (None, 2))


def make(registry: Registry, *problems: object) -> ControlPlane:
    """Return a control plane over a registry, with these problems on disk."""
    return make_control_plane(registry, make_metrics(), problems=lambda: problems)


async def test_a_process_is_not_ready_while_its_first_models_load() -> None:
    """The reason is that of the watcher, who knows what loading waits for."""
    registry = make_registry({})
    registry.settled = False
    plane = make(registry)
    assert (plane.readiness().ready, plane.readiness().reason) == (False, "loading models")
    health = await health_of(plane)
    assert (health["status"], health["model_loaded"]) == ("unready", False)


async def test_a_process_whose_models_serve_is_ready_and_healthy() -> None:
    """Readiness then has no reason."""
    plane = make(make_registry({"m": [make_entry(1, ControlledEngine())]}))
    assert (plane.readiness().ready, plane.readiness().reason) == (True, "")
    health = await health_of(plane)
    assert (health["status"], health["ready"], health["reason"]) == ("healthy", True, "")
    assert health["model_loaded"]
    assert health["models"] == {"m": {"1": "READY"}}
    assert health["problems"] == []
    uptime = health["uptime_seconds"]
    assert 0 <= uptime <= PATIENCE
    assert uptime == round(uptime, 3)


async def test_a_failed_version_degrades_health_while_another_one_serves() -> None:
    """The replica stays ready, so that load balancers keep it."""
    entries = [make_entry(1, ControlledEngine()), make_entry(2, reason="no such operator")]
    plane = make(make_registry({"m": entries}))
    assert plane.readiness().ready
    assert (await health_of(plane))["status"] == "degraded"


async def test_a_model_that_lost_its_ready_versions_makes_the_process_unready() -> None:
    """It is named; a model that never had one is not."""
    registry = make_registry(
        {"good": [make_entry(1, ControlledEngine())], "bad": [make_entry(1, reason="broken")]}
    )
    plane = make(registry)
    assert plane.readiness().ready
    registry.catalog = make_catalog(
        {"good": [make_entry(1, reason="broken")], "bad": [make_entry(1, reason="broken")]}
    )
    assert plane.readiness().reason == "models without a ready version: good"
    assert (await health_of(plane))["status"] == "unready"


async def test_an_unloaded_model_is_no_problem() -> None:
    """A model that was unloaded on purpose affects neither health nor readiness."""
    plane = make(
        make_registry({"m": [make_entry(1, state=State.UNAVAILABLE, reason=UNLOADED)]}),
    )
    assert plane.readiness().ready
    assert (await health_of(plane))["status"] == "healthy"
    assert not (await health_of(plane))["model_loaded"]


async def test_a_process_that_serves_nothing_is_not_ready() -> None:
    """This holds without models, as in a mistyped folder, and if no model loaded."""
    empty, broken = make_registry({}), make_registry({"m": [make_entry(1, reason="broken")]})
    assert make(empty).readiness() == Readiness(False, "there is no model to serve")
    assert make(broken).readiness() == Readiness(False, "models without a ready version: 'm'")
    assert (await health_of(make(broken)))["status"] == "unready"
    for registry in (empty, broken):
        plane = make_control_plane(registry, make_metrics(), allow_empty=True)
        assert plane.readiness().ready


def test_a_model_that_loads_when_it_is_asked_for_serves() -> None:
    """It counts whatever the others do: a request gets an answer here."""
    resting = make_entry(1, state=State.UNAVAILABLE, reason=RESTING)
    registry = make_registry({"m": [resting], "n": [make_entry(1, reason="broken")]})
    assert make(registry).readiness().ready


def test_what_serves_is_told_of_models_that_were_tried_and_not_unloaded() -> None:
    """Alerts need not exclude first loads, unloaded models, or models that rest."""
    registry = make_registry(
        {
            "good": [make_entry(1, ControlledEngine()), make_entry(2, reason="broken")],
            "bad": [make_entry(1, reason="broken")],
            "resting": [make_entry(1, reason=RESTING)],
            "unloaded": [make_entry(1, reason=UNLOADED)],
        }
    )
    assert registry.serving == {"good": True, "bad": False, "resting": True}
    registry.settled = False
    assert registry.serving == {}


async def test_a_version_that_is_held_back_is_named() -> None:
    """It is not a problem: a request that names it gets it.

    Callers read of models they may see only.
    """
    entries = [make_entry(1, ControlledEngine()), make_entry(2, ControlledEngine([X, Z]))]
    registry = make_registry({"m": entries})
    signatures = {one.number: one.signature for one in entries}
    model = ModelEntry("m", {one.number: one for one in entries}, signatures)
    registry.catalog = {"m": model}
    plane = make(registry)
    health = await health_of(plane)
    assert health["status"] == "healthy"
    assert health["held_back"] == {"m/2": model.held_back[2]}
    assert (await health_of(plane, frozenset({"n"})))["held_back"] == {}


async def test_problems_on_disk_degrade_health() -> None:
    """They are listed as text, for who may see all; the replica stays ready."""
    plane = make(
        make_registry({"m": [make_entry(1, ControlledEngine())]}), "rollouts.yaml: m: typo"
    )
    assert plane.readiness().ready
    assert (await health_of(plane))["status"] == "degraded"
    assert (await health_of(plane))["problems"] == ["rollouts.yaml: m: typo"]
    assert (await health_of(plane, frozenset({"m"})))["problems"] == []


async def test_what_is_not_on_disk_as_it_serves_is_a_problem() -> None:
    """The problem has the reason; the replica stays ready."""
    entry = make_entry(1, ControlledEngine(), reason="weights.bin is missing")
    plane = make(make_registry({"m": [entry]}))
    assert plane.readiness().ready
    assert (await health_of(plane))["problems"] == [
        "m/1: serves its previous files; those on disk cannot be loaded: weights.bin is missing"
    ]


def test_what_is_opened_last_is_waited_for() -> None:
    """The start ends once it is open; the reason shown is the last one."""
    registry = make_registry({"m": [make_entry(1, ControlledEngine())]})
    lifecycle = Lifecycle(registry, loading_reason=str, allow_empty=False)
    assert (lifecycle.settled, lifecycle.readiness()) == (True, Readiness(True))
    lifecycle.opening = "a port"
    assert (lifecycle.settled, lifecycle.readiness()) == (False, Readiness(False, "a port"))
    registry.settled = False
    assert lifecycle.readiness() == Readiness(False, "")


async def test_a_draining_process_draws_nothing_any_more() -> None:
    """What is being drawn would hold it up."""
    plane = make(make_registry({}))
    plane.begin_draining()
    with pytest.raises(NotReady, match="stop"):
        await plane.drawings.of(Drawable("a", Path("a"), list, lambda: True, "a"))


async def test_a_draining_process_is_not_ready() -> None:
    """A draining process gives draining as its reason, before any other, and lists its models."""
    registry = make_registry({"m": [make_entry(1, ControlledEngine())]})
    plane = make(registry)
    plane.begin_draining()
    registry.settled = False
    assert plane.draining
    assert (plane.readiness().ready, plane.readiness().reason) == (False, "draining")
    assert (await health_of(plane))["status"] == "draining"
    assert (await health_of(plane))["models"] == {"m": {"1": "READY"}}
