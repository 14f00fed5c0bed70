"""Loading and unloading by an operator."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cohort.errors import ModelNotFound, NotReady
from cohort.onnx_engine import VersionOpener
from cohort.onnx_engine.preparation import PreparedVersion, prepare_version
from cohort.operating import ControlPlane
from cohort.registry import UNLOADED, Source, State
from tests import onnx_models
from tests.fakes import make_metrics
from tests.planes import health_of, make_control_plane
from tests.registry.on_disk import RegistryOnDisk
from tests.waiting import PATIENCE

READY, UNAVAILABLE, UNLOADING = State.READY, State.UNAVAILABLE, State.UNLOADING


@pytest.fixture
def plane(disk: RegistryOnDisk) -> ControlPlane:
    """The operator's way into it."""
    return make_control_plane(disk.registry, make_metrics(), reconcile=disk.reconcile)


async def test_an_unloaded_model_stays_out_until_it_is_loaded(
    disk: RegistryOnDisk, plane: ControlPlane
) -> None:
    """This holds through any number of scans, and when files change."""
    disk.put(1)
    await disk.reconcile()
    await plane.unload("m")
    (disk.models / "m/1/notes.txt").write_text("something changed")
    for _ in range(2):
        await disk.reconcile()
        assert disk.states("m") == {1: UNAVAILABLE}
    assert plane.limited_to(None).index() == [
        {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": UNLOADED}
    ]
    with pytest.raises(NotReady, match="unloaded"):
        disk.registry.find("m")
    await plane.load("m")
    assert disk.states("m") == {1: READY}
    assert plane.limited_to(None).index()[0]["reason"] == ""


async def test_an_unloaded_model_has_not_gone_dark(
    disk: RegistryOnDisk, plane: ControlPlane
) -> None:
    """The replica is ready and healthy while it is out, and once it is loaded again."""
    disk.put(1)
    await disk.reconcile()
    await plane.unload("m")
    assert plane.readiness().ready
    assert (await health_of(plane))["status"] == "healthy"
    disk.registry.reload_model("m")
    assert "without a ready version: 'm'" in plane.readiness().reason
    await disk.reconcile()
    assert plane.readiness().ready


async def test_what_is_in_flight_finishes_before_a_model_goes(
    disk: RegistryOnDisk, plane: ControlPlane
) -> None:
    """It is UNLOADING while a lease is held, through scans; then its memory is free."""
    disk.put(1)
    await disk.reconcile()
    held = disk.registry.find("m").engine
    assert held is not None
    held.leases.count += 1
    await plane.unload("m")
    await disk.reconcile()
    assert disk.states("m") == {1: UNLOADING}
    with pytest.raises(NotReady):
        disk.registry.find("m")
    held.leases.release()
    assert disk.states("m") == {1: UNAVAILABLE}


async def test_a_model_is_loaded_again_while_its_old_self_finishes(
    disk: RegistryOnDisk, plane: ControlPlane
) -> None:
    """The load does not wait for the last caller of the old one, and nothing is closed twice."""
    disk.put(1)
    await disk.reconcile()
    held = disk.registry.find("m").engine
    assert held is not None
    held.leases.count += 1
    await plane.unload("m")
    await plane.load("m")
    again = disk.registry.find("m").engine
    assert again is not held
    held.leases.release()
    assert disk.states("m") == {1: READY}
    assert (await disk.infer("m", [0.0] * 4))[0].shape[0] == 1


async def test_a_model_taken_out_while_it_loads_does_not_come_up(
    disk: RegistryOnDisk, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load that was under way ends unused."""
    begun, go_on = threading.Event(), threading.Event()

    def held(source: Source, opener: VersionOpener, _: object) -> PreparedVersion:
        begun.set()
        assert go_on.wait(PATIENCE)
        return prepare_version(source, opener)

    monkeypatch.setattr("cohort.onnx_engine.factory.prepare_version", held)
    disk.put(1)
    loading = asyncio.create_task(disk.reconcile())
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    await plane.unload("m")
    go_on.set()
    await loading
    assert disk.states("m") == {1: UNAVAILABLE}
    await plane.load("m")
    assert disk.states("m") == {1: READY}


async def test_load_tries_again_what_failed_and_says_why_it_fails(
    disk: RegistryOnDisk, plane: ControlPlane
) -> None:
    """It does so even if no file has changed since."""
    onnx_models.save(onnx_models.mlp(), disk.models / "m/1/model.onnx")
    good = (disk.models / "m/1/model.onnx").read_bytes()
    (disk.models / "m/1/model.onnx").write_bytes(b"broken")
    await disk.reconcile()
    failures = len(disk.events)
    with pytest.raises(NotReady, match="version 1: "):
        await plane.load("m")
    assert len(disk.events) == failures + 1, "it was tried again"
    (disk.models / "m/1/model.onnx").write_bytes(good)
    await plane.load("m")
    assert disk.states("m") == {1: READY}


async def test_load_says_when_only_an_older_version_serves(
    disk: RegistryOnDisk, plane: ControlPlane
) -> None:
    """The model answers, and the operator still learns that the newest version does not."""
    disk.put(1)
    await disk.reconcile()
    (disk.models / "m/2").mkdir()
    (disk.models / "m/2/model.onnx").write_bytes(b"broken")
    with pytest.raises(NotReady, match="version 2: "):
        await plane.load("m")
    assert plane.limited_to(None).ready("m") == "1"


async def test_load_takes_what_was_put_on_disk_just_now(
    disk: RegistryOnDisk, plane: ControlPlane
) -> None:
    """The operator need not wait for the next scan."""
    await disk.reconcile()
    with pytest.raises(ModelNotFound):
        await plane.load("m")
    disk.put(1)
    await plane.load("m")
    assert plane.limited_to(None).ready("m") == "1"


async def test_unknown_models_cannot_be_unloaded(disk: RegistryOnDisk, plane: ControlPlane) -> None:
    """A mistyped name is reported."""
    disk.put(1)
    await disk.reconcile()
    with pytest.raises(ModelNotFound, match="'mm' not found"):
        await plane.unload("mm")


async def test_an_unloaded_model_that_leaves_the_disk_is_forgotten(
    disk: RegistryOnDisk, plane: ControlPlane
) -> None:
    """It is no longer in any index."""
    disk.put(1)
    await disk.reconcile()
    await plane.unload("m")
    (disk.models / "m/1/model.onnx").unlink()
    (disk.models / "m/1").rmdir()
    (disk.models / "m").rmdir()
    await disk.reconcile()
    assert plane.limited_to(None).index() == []
