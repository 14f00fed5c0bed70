"""A process without its listeners: what starts, what runs in the background, what stops when."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any
from unittest import mock

import numpy as np
import pytest
from structlog.testing import capture_logs

from cohort.errors import DeadlineExceeded, NotReady, Overloaded
from cohort.process import model_loader
from cohort.process.application import create_app
from cohort.process.health_watch import HealthWatch
from cohort.process.service import Service
from cohort.registry import State, VersionFailed, VersionUnbatched, VersionUnloaded
from cohort.repository import Snapshot, scan
from cohort.settings import Settings
from tests import onnx_models
from tests.fakes import exposed
from tests.planes import infer
from tests.waiting import iterations, until


def scan_now(models: Path, previous: Snapshot | None = None, **named: Any) -> Snapshot:
    """Scan without waiting for files that were written just now."""
    return scan(models, previous, quiet=0, **named)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Those of a process over an empty models folder."""
    monkeypatch.setattr(model_loader, "scan", scan_now)
    (tmp_path / "models").mkdir()
    return Settings(
        models=tmp_path / "models",
        rollouts=tmp_path / "rollouts.yaml",
        state=tmp_path / "state",
        cache=tmp_path / "cache",
        watch_seconds=0.01,
        log_format="json",
    )


async def test_models_load_in_the_background_and_unload_at_the_end(settings: Settings) -> None:
    """`running` is entered before the first models are loaded."""
    onnx_models.save(onnx_models.mlp(), settings.models_folder / "m/1/model.onnx")
    service = Service(settings)
    with capture_logs() as logs:
        async with service.running():
            assert not service.control_plane.readiness().ready
            await until(lambda: service.control_plane.readiness().ready)
            assert service.control_plane.limited_to(None).ready("m") == "1"
            text = exposed(service.core.metrics)
            assert 'model_load_duration_seconds_count{model="m",version="1"} 1.0' in text
            onnx_models.save(onnx_models.mlp(), settings.models_folder / "m/2/model.onnx")
            await until(lambda: service.control_plane.limited_to(None).ready("m") == "2")
    assert service.core.registry.catalog == {}
    events = [(one["event"], one.get("version")) for one in logs]
    assert ("version ready", 1) in events
    assert ("version unloaded", 2) in events
    assert ("first models loaded", None) in events


async def test_a_model_that_cannot_be_stopped_makes_the_process_unready(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its callers are answered in time; the process names the model until the run ends."""
    onnx_models.save(onnx_models.one_long_node(), settings.models_folder / "m/1/model.onnx")
    monkeypatch.setattr("cohort.operating.health.STUCK_SECONDS", 0.05)
    service = Service(settings)
    monkeypatch.setattr("cohort.process.health_watch.LAG_INTERVAL_SECONDS", 0.01)
    plane = service.control_plane

    async def ask() -> bool:
        """Return True if a run is stuck: a busy machine may give one up before it begins."""
        with (
            service.core.data_plane.pick("m") as lease,
            pytest.raises((DeadlineExceeded, Overloaded)),
        ):
            await infer(lease, {"n": np.array([40_000])}, timeout=0.1)
        return not plane.readiness().ready

    with capture_logs() as logs:
        async with service.running():
            await until(lambda: plane.readiness().ready)
            await until(ask)
            assert "has not stopped" in plane.readiness().reason
            assert "model m, version 1" in plane.readiness().reason
            assert plane.liveness().ready
            await until(lambda: plane.readiness().ready)
            await until(lambda: any(one["event"] == "well again" for one in logs))
    kinds = {one["kind"] for one in logs if one["event"] == "unwell"}
    assert kinds - {"loop_lagging"} == {"run_stuck"}  # a loop lags on a busy machine


async def test_parts_stop_in_reverse_order(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New requests stop first; the threads stop last, because batches in flight end on them."""
    service = Service(settings)
    stopped: list[str] = []

    def recorded(part: str, close: Callable[[], None]) -> Callable[[], None]:
        def record() -> None:
            stopped.append(part)
            close()

        return record

    for part in ("scheduler", "registry", "rollouts", "data_plane"):
        owner = getattr(service.core, part)
        monkeypatch.setattr(owner, "close", recorded(part, owner.close))
    async with service.running():
        assert stopped == []
    assert stopped == ["data_plane", "rollouts", "registry", "scheduler"]
    assert asyncio.all_tasks() == {asyncio.current_task()}, "no background task is left"


async def test_a_stopped_process_takes_no_requests(settings: Settings) -> None:
    """They are refused as not ready."""
    service = Service(settings)
    async with service.running():
        pass
    with pytest.raises(NotReady, match="shutting down"):
        service.core.data_plane.begin_reading()


async def test_a_background_step_that_fails_is_logged_and_repeated(settings: Settings) -> None:
    """One scan's failure does not end the process or the watching."""
    calls = 0

    def failing(models: Path, previous: Snapshot | None = None, **named: Any) -> Snapshot:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("the disk is gone for a moment")
        return scan_now(models, previous, **named)

    service = Service(settings)
    with mock.patch.object(model_loader, "scan", failing), capture_logs() as logs:
        async with service.running():
            await until(lambda: service.core.registry.settled)
    (failure,) = [one for one in logs if one["event"] == "a background step failed"]
    assert failure["log_level"] == "error"
    assert failure["exc_info"]


async def test_without_watching_the_disk_is_scanned_once(settings: Settings) -> None:
    """`watch_seconds` is 0."""
    scans = 0

    def counted(models: Path, previous: Snapshot | None = None, **named: Any) -> Snapshot:
        nonlocal scans
        scans += 1
        return scan_now(models, previous, **named)

    service = Service(settings.model_copy(update={"watch_seconds": 0}))
    with mock.patch.object(model_loader, "scan", counted):
        async with service.running():
            await until(lambda: service.core.registry.settled)
            await iterations(100)
    assert scans == 1


async def test_scans_that_take_long_are_made_less_often(settings: Settings) -> None:
    """A scan may take half a percent of a core: after one of 5 ms there is none for a second."""

    def long(models: Path, previous: Snapshot | None = None, **named: Any) -> Snapshot:
        end = thread_time() + 0.005
        while thread_time() < end:
            pass
        return scan_now(models, previous, **named)

    service = Service(settings)
    assert service.files.loader.pause == 0
    with mock.patch.object(model_loader, "scan", long):
        async with service.running():
            await until(lambda: service.core.registry.settled)
            assert 1 <= service.files.loader.pause <= model_loader.MAX_SCAN_PAUSE_SECONDS


async def test_problems_of_models_and_of_rollouts_are_in_health(settings: Settings) -> None:
    """Both come from the operator's files."""
    onnx_models.save(onnx_models.mlp(), settings.models_folder / "m/1/model.onnx")
    (settings.models_folder / "m/config.yaml").write_text("batching: {max_batchsize: 3}")
    settings.rollouts.write_text("gone: {variants: {a: {version: 1, weight: 1}}}")
    service = Service(settings)
    async with service.running():
        await until(lambda: service.core.registry.settled)
        problems = "\n".join(service.process_plane.summary.problems())
    assert "max_batchsize" in problems
    assert "gone" in problems


async def test_an_operators_load_brings_a_model_back(settings: Settings) -> None:
    """The control plane reconciles by the same loader as the background task."""
    onnx_models.save(onnx_models.mlp(), settings.models_folder / "m/1/model.onnx")
    service = Service(settings)
    async with service.running():
        await until(lambda: service.core.registry.settled)
        await service.control_plane.unload("m")
        assert service.core.registry.version("m", "1").state is State.UNAVAILABLE
        await service.control_plane.load("m")
        assert service.core.registry.version("m", "1").state is State.READY


def test_events_of_the_registry_are_logged(settings: Settings) -> None:
    """A failure is an error, a loss of batching a warning, an unload is for information."""
    service = Service(settings)
    with capture_logs() as logs:
        service.core.registry_events(VersionFailed("m", 2, "no such operator", serving=True))
        service.core.registry_events(VersionUnbatched("m", 1, "rows do not follow"))
        service.core.registry_events(VersionUnloaded("m", 1))
    assert [(one["log_level"], one["event"], one["version"]) for one in logs] == [
        ("error", "version unavailable", 2),
        ("warning", "batching disabled", 1),
        ("info", "version unloaded", 1),
    ]
    assert logs[0]["reason"] == "no such operator"
    assert logs[0]["former_files_serve"] is True
    service.core.scheduler.close()


async def test_a_service_that_fails_ends_the_process(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a bug in a background task, it would otherwise answer 503 indefinitely."""

    async def fail(_: HealthWatch) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(HealthWatch, "run", fail)
    app = create_app(settings=settings)
    raised: list[int] = []
    with (
        mock.patch("signal.raise_signal", raised.append),
        pytest.raises(ExceptionGroup),
        capture_logs() as logs,
    ):
        async with app.router.lifespan_context(app):
            await asyncio.Event().wait()
    assert raised == [signal.SIGTERM]
    assert app.state.service.failed
    assert "the service failed" in [line["event"] for line in logs]
