"""What an operator loads and unloads by hand."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from app.control_plane import ControlPlane
from app.errors import ModelNotFound, NotReady
from app.registry import UNLOADED, Source, State
from app.registry.preparation import PreparedVersion, prepare_version
from tests import onnx_models
from tests.fakes import PATIENCE, make_metrics
from tests.planes import make_control_plane
from tests.registry.test_registry import House, put

READY, UNAVAILABLE, UNLOADING = State.READY, State.UNAVAILABLE, State.UNLOADING


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A registry over an empty folder."""
    (tmp_path / "models").mkdir()
    return House(tmp_path / "models")


@pytest.fixture
def plane(house: House) -> ControlPlane:
    """The operator's way into it."""
    metrics = make_metrics(house.registry.catalog.values)
    return make_control_plane(house.registry, metrics, reconcile=house.reconcile)


async def test_an_unloaded_model_stays_out_until_it_is_loaded(
    house: House, plane: ControlPlane
) -> None:
    """Through any number of looks at the disk, and files that change, too."""
    put(house, 1)
    await house.reconcile()
    plane.unload("m")
    (house.models / "m/1/notes.txt").write_text("something changed")
    for _ in range(2):
        await house.reconcile()
        assert house.states("m") == {1: UNAVAILABLE}
    assert plane.index() == [
        {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": UNLOADED}
    ]
    with pytest.raises(NotReady, match="unloaded"):
        house.registry.find("m")
    await plane.load("m")
    assert house.states("m") == {1: READY}
    assert plane.index()[0]["reason"] == ""


async def test_an_unloaded_model_has_not_gone_dark(house: House, plane: ControlPlane) -> None:
    """The replica is ready and healthy while it is out, and while it is being loaded again."""
    put(house, 1)
    await house.reconcile()
    plane.unload("m")
    assert plane.readiness().ready
    assert plane.health()["status"] == "healthy"
    house.registry.reload_model("m")
    assert plane.readiness().ready


async def test_what_is_in_flight_finishes_before_a_model_goes(
    house: House, plane: ControlPlane
) -> None:
    """UNLOADING while somebody holds it, through looks at the disk; then its memory is free."""
    put(house, 1)
    await house.reconcile()
    held = house.registry.find("m").engine
    assert held is not None
    held.leases.count += 1
    plane.unload("m")
    await house.reconcile()
    assert house.states("m") == {1: UNLOADING}
    with pytest.raises(NotReady):
        house.registry.find("m")
    held.leases.release()
    assert house.states("m") == {1: UNAVAILABLE}


async def test_a_model_is_loaded_again_while_its_old_self_finishes(
    house: House, plane: ControlPlane
) -> None:
    """Nobody waits for the last caller of the one that goes, and nothing is closed twice."""
    put(house, 1)
    await house.reconcile()
    held = house.registry.find("m").engine
    assert held is not None
    held.leases.count += 1
    plane.unload("m")
    await plane.load("m")
    again = house.registry.find("m").engine
    assert again is not held
    held.leases.release()
    assert house.states("m") == {1: READY}
    assert (await house.ask("m", [0.0] * 4))[0].shape[0] == 1


async def test_a_model_taken_out_while_it_loads_does_not_come_up(
    house: House, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load that was under way ends unused."""
    begun, go_on = threading.Event(), threading.Event()

    def held(source: Source, cache: Path | None) -> PreparedVersion:
        begun.set()
        assert go_on.wait(PATIENCE)
        return prepare_version(source, cache)

    monkeypatch.setattr("app.registry.registry.prepare_version", held)
    put(house, 1)
    loading = asyncio.create_task(house.reconcile())
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    plane.unload("m")
    go_on.set()
    await loading
    assert house.states("m") == {1: UNAVAILABLE}
    await plane.load("m")
    assert house.states("m") == {1: READY}


async def test_load_tries_again_what_failed_and_says_why_it_fails(
    house: House, plane: ControlPlane
) -> None:
    """Also where no file has changed since."""
    onnx_models.save(onnx_models.mlp(), house.models / "m/1/model.onnx")
    good = (house.models / "m/1/model.onnx").read_bytes()
    (house.models / "m/1/model.onnx").write_bytes(b"broken")
    await house.reconcile()
    failures = len(house.events)
    with pytest.raises(NotReady, match="version 1: "):
        await plane.load("m")
    assert len(house.events) == failures + 1, "it was tried again"
    (house.models / "m/1/model.onnx").write_bytes(good)
    await plane.load("m")
    assert house.states("m") == {1: READY}


async def test_load_says_when_only_an_older_version_serves(
    house: House, plane: ControlPlane
) -> None:
    """The model answers, and the operator still hears that the newest does not."""
    put(house, 1)
    await house.reconcile()
    (house.models / "m/2").mkdir()
    (house.models / "m/2/model.onnx").write_bytes(b"broken")
    with pytest.raises(NotReady, match="version 2: "):
        await plane.load("m")
    assert plane.ready("m") == "1"


async def test_load_takes_what_was_put_on_disk_just_now(house: House, plane: ControlPlane) -> None:
    """Nobody has to wait for the next look."""
    await house.reconcile()
    with pytest.raises(ModelNotFound):
        await plane.load("m")
    put(house, 1)
    await plane.load("m")
    assert plane.ready("m") == "1"


async def test_unknown_models_cannot_be_unloaded(house: House, plane: ControlPlane) -> None:
    """A slip of the finger is told."""
    put(house, 1)
    await house.reconcile()
    with pytest.raises(ModelNotFound, match="'mm' not found"):
        plane.unload("mm")


async def test_an_unloaded_model_that_leaves_the_disk_is_forgotten(
    house: House, plane: ControlPlane
) -> None:
    """It is in no index any more."""
    put(house, 1)
    await house.reconcile()
    plane.unload("m")
    (house.models / "m/1/model.onnx").unlink()
    (house.models / "m/1").rmdir()
    (house.models / "m").rmdir()
    await house.reconcile()
    assert plane.index() == []
