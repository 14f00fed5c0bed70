"""The registry follows a real folder, without HTTP."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cohort.process import model_loader
from cohort.process.model_loader import ModelLoader
from cohort.process.startup import StartUp
from cohort.registry import State
from cohort.repository import EMPTY_FOLDER, Snapshot, scan
from cohort.rollouts import Rollouts, RolloutWatcher
from cohort.session import default_chain
from cohort.settings import Settings
from tests.registry.on_disk import RegistryOnDisk
from tests.waiting import PATIENCE, until

READY, UNAVAILABLE = State.READY, State.UNAVAILABLE


class Loading:
    """A loader over a folder of models, with a rollouts file next to it."""

    def __init__(self, folder: Path) -> None:
        self.rollouts_file = folder / "rollouts.yaml"
        self.disk = RegistryOnDisk(folder / "models")
        self.disk.models.mkdir()
        registry = self.disk.registry
        self.rollouts = Rollouts(catalog=lambda: registry.catalog, observe=lambda event: None)
        self.watcher = RolloutWatcher(self.rollouts_file, folder / "state", self.rollouts)
        settings = Settings(models=self.disk.models, rollouts=self.rollouts_file, log_format="json")
        start_up = StartUp(settings, default_chain(["cpu"]))
        self.loader = ModelLoader(settings, registry, self.rollouts, self.watcher, start_up)

    async def start(self) -> None:
        """Read the rollouts file, then load."""
        await self.watcher.check_file()
        await self.reconcile()

    async def reconcile(self) -> None:
        """Scan the disk, and wait for the loads."""
        await self.loader.reconcile()
        await self.disk.registry.loaded()


def scan_now(models: Path, previous: Snapshot | None = None, **named: Any) -> Snapshot:
    """Scan without waiting for files that were written just now."""
    return scan(models, previous, quiet=0, **named)


@pytest.fixture
def loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loading]:
    """A loader over an empty folder."""
    monkeypatch.setattr(model_loader, "scan", scan_now)
    loading = Loading(tmp_path)
    yield loading
    loading.rollouts.close()
    loading.disk.registry.close()
    loading.disk.scheduler.close()


async def test_what_is_on_disk_is_loaded_and_unloaded(loading: Loading) -> None:
    """Each call follows what changed since the last one."""
    loading.disk.put(1)
    await loading.start()
    assert loading.disk.registry.settled
    assert loading.disk.states("m") == {1: READY}
    loading.disk.put(2)
    await loading.reconcile()
    assert loading.disk.states("m") == {2: READY}
    shutil.rmtree(loading.disk.models / "m")
    await loading.reconcile()
    assert loading.disk.states("m") == {}


async def test_a_folder_without_a_model_is_a_problem(loading: Loading) -> None:
    """It may be mistyped, or not mounted; it is none any more once a model is there."""
    await loading.start()
    (problem,) = loading.loader.problems
    assert str(problem) == f"{loading.disk.models}: {EMPTY_FOLDER}"
    loading.disk.put(1)
    await loading.reconcile()
    assert loading.loader.problems == ()


async def test_a_folder_that_hangs_is_a_problem(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The problem lasts as long as the folder hangs, even before the first load."""
    looking, goes_on = threading.Event(), threading.Event()

    def hang(models: Path, previous: Snapshot | None, **named: Any) -> Snapshot:
        looking.set()
        assert goes_on.wait(PATIENCE)
        return scan_now(models, previous, **named)

    monkeypatch.setattr(model_loader, "scan", hang)
    monkeypatch.setattr(model_loader, "SLOW_SCAN_SECONDS", 0.0)
    loading.disk.put(1)
    start = asyncio.create_task(loading.start())
    assert await asyncio.to_thread(looking.wait, PATIENCE)
    assert loading.loader.scanning_seconds > 0
    (problem,) = loading.loader.problems
    assert "its file system may hang" in str(problem)
    goes_on.set()
    await start
    assert loading.loader.scanning_seconds == 0
    assert loading.loader.problems == ()


@pytest.mark.parametrize("text", ["m: 3", "m: {variants: [", "{'m': }", "# m\n: :"])
async def test_models_in_an_invalid_rollouts_file_wait_for_a_valid_one(
    loading: Loading, text: str
) -> None:
    """It is unknown which of their versions may have traffic; all other models serve."""
    loading.disk.put(1)
    other = loading.disk.models / "m2"
    shutil.copytree(loading.disk.models / "m", other)
    await loading.reconcile()
    assert not loading.disk.registry.settled
    assert loading.loader.problems == ()
    loading.rollouts_file.write_text(text)
    await loading.start()
    assert loading.disk.states("m") == {1: UNAVAILABLE}
    reason = loading.disk.registry.catalog["m"].versions[1].reason
    assert reason.startswith("the rollouts file is invalid: rollouts.yaml")
    assert loading.disk.states("m2") == {1: READY}
    loading.rollouts_file.unlink()
    await loading.start()
    assert loading.disk.states("m") == {1: READY}


async def test_nothing_is_loaded_where_nobody_knows_whom_the_rollouts_name(
    loading: Loading,
) -> None:
    """The file cannot be decoded, or may contain a name in another spelling."""
    loading.disk.put(1)
    for content in (b"\xff\xfe", b'"\\x6d": 3'):
        loading.rollouts_file.write_bytes(content)
        await loading.start()
        assert loading.disk.registry.catalog == {}
    loading.rollouts_file.unlink()
    await loading.start()
    assert loading.disk.states("m") == {1: READY}


async def test_versions_of_a_rollout_are_loaded_besides_those_of_the_policy(
    loading: Loading,
) -> None:
    """The default policy is the newest version."""
    for version in (1, 2, 3):
        loading.disk.put(version)
    loading.rollouts_file.write_text("m: {variants: {old: {version: 1, weight: 1}}}")
    await loading.start()
    assert loading.disk.states("m") == {1: READY, 3: READY}


async def test_problems_on_disk_are_those_of_the_last_scan_and_logged_once(
    loading: Loading,
) -> None:
    """The model serves on with its last good config."""
    loading.disk.put(1)
    await loading.start()
    config = loading.disk.models / "m/config.yaml"
    config.write_text("batching: {max_batchsize: 3}")
    with capture_logs() as logs:
        await loading.reconcile()
        await loading.reconcile()
    assert ["max_batchsize" in str(problem) for problem in loading.loader.problems] == [True]
    assert [one["event"] for one in logs].count("models folder problem") == 1
    assert loading.disk.states("m") == {1: READY}
    config.unlink()
    await loading.reconcile()
    assert loading.loader.problems == ()


async def test_calls_at_the_same_time_take_turns(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background task's and an operator's scans never overlap."""
    running = most = 0

    def counted(models: Path, previous: Snapshot | None = None, **named: Any) -> Snapshot:
        nonlocal running, most
        running += 1
        most = max(most, running)
        snapshot = scan_now(models, previous, **named)
        running -= 1
        return snapshot

    monkeypatch.setattr(model_loader, "scan", counted)
    await loading.watcher.check_file()
    await asyncio.gather(*(loading.loader.reconcile() for _ in range(5)))
    assert most == 1


class StillCopying:
    """A scan that finds version 1 of `m` still being copied, for a given number of times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.scans = 0

    def __call__(self, models: Path, previous: Snapshot | None = None, **named: Any) -> Snapshot:
        self.scans += 1
        if self.scans > self.times:
            return scan_now(models, previous, **named)
        fresh = scan(models, Snapshot(), quiet=3600)
        assert fresh.settling
        return fresh


async def test_an_operators_load_waits_for_files_that_are_being_copied(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It scans again until they are complete."""
    monkeypatch.setattr(model_loader, "QUIET_SECONDS", 0)
    copying = StillCopying(3)
    monkeypatch.setattr(model_loader, "scan", copying)
    loading.disk.put(1)
    await loading.watcher.check_file()
    await loading.loader.reconcile_settled()
    await loading.disk.registry.loaded()
    assert copying.scans == 4
    assert loading.disk.states("m") == {1: READY}


async def test_an_operators_load_does_not_wait_for_ever(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that never ends is left for later scans."""
    monkeypatch.setattr(model_loader, "SETTLING_SECONDS", 0)
    copying = StillCopying(1000)
    monkeypatch.setattr(model_loader, "scan", copying)
    loading.disk.put(1)
    await loading.watcher.check_file()
    await loading.loader.reconcile_settled()
    assert copying.scans == 1
    assert loading.disk.states("m") == {}


async def test_a_long_first_load_is_told(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table comes at the end, so the line explains the wait to an operator."""
    monkeypatch.setattr(model_loader, "STILL_LOADING_SECONDS", 0.01)
    loading.disk.put(1)
    with capture_logs() as lines:
        report = asyncio.create_task(loading.loader.report_first())
        await until(lambda: any(line["event"] == "still loading" for line in lines))
        await loading.start()
        await report
    assert lines[-1]["event"] == "first models loaded"
