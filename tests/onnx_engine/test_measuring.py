"""Versions that serve before they are measured, and are measured while they serve."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cohort.onnx_engine import measurement, measurer, pace_check
from cohort.onnx_engine.batched_session import BatchedSession
from cohort.profiling import MEASURING, Threads, profile_briefly, result
from cohort.registry import (
    VersionEntry,
    VersionMeasured,
    VersionProfileStale,
    VersionReady,
)
from cohort.tensors import Array, Arrays
from tests import onnx_models
from tests.engines import batching_of
from tests.registry.on_disk import RegistryOnDisk, infer
from tests.waiting import PATIENCE, until

ROW: Arrays = {"x": np.ones((1, 4), np.float32)}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load has no time to measure anything."""
    monkeypatch.setattr(measurement, "profile_briefly", partial(profile_briefly, seconds=0.0))


def engine_of(disk: RegistryOnDisk) -> BatchedSession:
    engine = disk.registry.find("m").engine
    assert isinstance(engine, BatchedSession)
    return engine


def entry_of(disk: RegistryOnDisk) -> VersionEntry:
    return disk.registry.find("m")


def configure(disk: RegistryOnDisk, config: str) -> None:
    (disk.models / "m" / "config.yaml").write_text(config)


def close(one: Array, other: Array) -> bool:
    return bool(np.allclose(one.astype(float), other.astype(float), rtol=1e-4, atol=1e-6))


async def until_measured(disk: RegistryOnDisk, times: int = 1) -> None:
    await until(lambda: sum(isinstance(one, VersionMeasured) for one in disk.events) == times)


async def test_a_version_serves_one_by_one_until_it_is_measured(disk: RegistryOnDisk) -> None:
    """It runs off the event loop, since the length of a run is unknown; then as measured."""
    disk.put(1)
    await disk.reconcile()
    assert [type(one) for one in disk.events] == [VersionReady]
    described = batching_of(engine_of(disk))
    assert (described.policy.max_batch_size, described.unpredictable) == (1, MEASURING)
    assert entry_of(disk).batching_off == MEASURING
    assert not described.profile.complete
    before = await infer(engine_of(disk), ROW)
    await until_measured(disk)
    described = batching_of(engine_of(disk))
    assert described.profile.complete
    assert described.unpredictable == ""
    assert entry_of(disk).batching_off == described.profile.profile.reason != MEASURING
    assert close(before[0], (await infer(engine_of(disk), ROW))[0])


async def test_requests_under_way_are_answered_across_a_measurement(disk: RegistryOnDisk) -> None:
    """Those that were queued before it, and those after, each with its own row."""
    disk.put(1)
    configure(disk, "batching: {max_batch_size: 2}")
    await disk.reconcile()
    engine = engine_of(disk)
    rows: list[Arrays] = [{"x": np.full((1, 4), number, np.float32)} for number in range(8)]
    wanted = [(await infer(engine, row))[0] for row in rows]
    done = asyncio.Event()

    async def ask(number: int) -> None:
        while not done.is_set():
            (output,) = await infer(engine, rows[number])
            assert close(output, wanted[number])

    async with asyncio.TaskGroup() as callers:
        for number in range(8):
            callers.create_task(ask(number))
        await until_measured(disk)
        done.set()


async def test_what_was_measured_is_kept_for_the_next_load(
    disk: RegistryOnDisk, tmp_path: Path
) -> None:
    """Which then measures nothing and serves by it at once.

    A machine that was busy may have measured what cannot be, which is measured again.
    """
    disk.keep_in(tmp_path / "cache")

    async def is_kept(load: int) -> bool:
        disk.put(1, f"copy{load}")
        await disk.reconcile()
        engine = disk.registry.find(f"copy{load}").engine
        assert engine is not None
        if kept := batching_of(engine).profile.kept:
            return kept
        await until_measured(disk, load)
        return False

    assert not await is_kept(1)
    async with asyncio.timeout(PATIENCE):
        load = 2
        while not await is_kept(load):
            load += 1


async def test_threads_are_found_in_an_idle_moment_and_closed_with_the_version(
    disk: RegistryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session for exclusive runs is opened while the first one serves."""
    monkeypatch.setattr(result, "may_pay", lambda *_: True)
    monkeypatch.setattr(result, "find_threads", lambda *_: Threads(2, 2, 1.5))
    disk.put(1)
    await disk.reconcile()
    await until_measured(disk)
    exclusive = engine_of(disk)._prepared.exclusive
    assert exclusive is not None
    assert (await infer(engine_of(disk), ROW))[0].shape[0] == 1
    disk.registry.close()
    assert exclusive._raw is None


@pytest.mark.parametrize("factor", [1000.0, 0.001])
async def test_a_profile_that_proves_wrong_is_measured_and_kept_anew(
    disk: RegistryOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """One that was made on a busy machine, say, or changed by hand."""
    monkeypatch.setattr(pace_check, "CHECKS", 3)
    disk.keep_in(tmp_path / "cache")
    onnx_models.save(onnx_models.slow(nodes=20), disk.models / "m" / "1" / "model.onnx")
    configure(disk, "session: {intra_op_threads: 1}")
    await disk.reconcile()
    await until_measured(disk)
    await disk.registry.check_engines()
    (file,) = (tmp_path / "cache" / "profiles").glob("*.json")
    kept = json.loads(file.read_text())
    right = kept["seconds"]
    kept["seconds"] = {rows: max(taken * factor, 1e-6) for rows, taken in right.items()}
    file.write_text(json.dumps(kept))
    onnx_models.save(onnx_models.slow(nodes=20), disk.models / "m" / "2" / "model.onnx")
    await disk.reconcile()
    found = engine_of(disk).profile
    assert found.kept
    assert found.profile.seconds_for(1) == pytest.approx(kept["seconds"]["1"])

    async def stale() -> bool:
        for _ in range(10):
            await infer(engine_of(disk), ROW)
        await disk.registry.check_engines()
        return any(isinstance(one, VersionProfileStale) for one in disk.events)

    await until(stale)
    await until_measured(disk, 2)
    found = engine_of(disk).profile
    assert (found.kept, found.stale_reason) == (False, "")
    assert found.profile.seconds_for(1) < right["1"] * 100
    assert json.loads(file.read_text())["seconds"]["1"] == pytest.approx(found.profile.seconds[1])


async def test_a_version_is_unloaded_while_it_is_measured(disk: RegistryOnDisk) -> None:
    """Nothing waits for its measurement, and the next version is measured after it."""
    for model in (onnx_models.slow(nodes=50), onnx_models.mlp()):
        onnx_models.save(model, disk.models / "m" / "1" / "model.onnx")
        await disk.reconcile()
    await until_measured(disk)
    assert disk.registry.find("m").engine is engine_of(disk)
    assert batching_of(engine_of(disk)).profile.complete


async def test_the_next_try_of_a_measurement_is_named(
    disk: RegistryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is minutes away, and nothing is measured until then."""

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("none is left")

    monkeypatch.setattr(measurement, "profile_model", fail)
    disk.put(1)
    await disk.reconcile()
    await until(lambda: entry_of(disk).batching_off != MEASURING)
    said = r"it could not be measured: none is left; the next try begins at \d\d:\d\d:\d\d UTC"
    assert re.fullmatch(said, entry_of(disk).batching_off)


async def test_what_cannot_be_measured_stays_careful_and_is_tried_again(
    disk: RegistryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again later, a limited number of times; the description gives the reason."""
    failures: list[int] = []

    def fail(*_: object, **__: object) -> None:
        failures.append(len(failures))
        raise MemoryError("none is left")

    monkeypatch.setattr(measurement, "profile_model", fail)
    monkeypatch.setattr(measurer, "RETRY_SECONDS", 0.0)
    disk.put(1)
    await disk.reconcile()
    await until(lambda: len(failures) == measurer.ATTEMPTS)
    assert (await infer(engine_of(disk), ROW))[0].shape[0] == 1
    await until(lambda: entry_of(disk).batching_off == "it could not be measured: none is left")
