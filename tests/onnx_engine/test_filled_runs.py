"""Runs that are filled up: those of every queue, as long as requests may share runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cohort.onnx_engine.batched_session import BatchedSession
from cohort.onnx_engine.measurer import MeasuredVersion
from cohort.profiling import Profile
from cohort.registry import RequestQueue
from tests import onnx_models
from tests.fakes import RecordedReply
from tests.registry.on_disk import RegistryOnDisk

FILLED = Profile({1: 0.001, 8: 0.001}, 8, change_seconds=0.1)


async def engine_with(disk: RegistryOnDisk, profile: Profile) -> BatchedSession:
    """Return the engine of a model that outputs how many rows its runs have, with this profile."""
    onnx_models.save(onnx_models.rows_of_its_run(), disk.models / "m/1/model.onnx")
    await disk.reconcile()
    engine = disk.registry.find("m").engine
    assert isinstance(engine, BatchedSession)
    assert engine.measurement is not None
    engine.measurement.stop()
    engine.adopt(MeasuredVersion(replace(engine.profile, profile=profile), None, final=True))
    return engine


async def rows_run(queue: RequestQueue, rows: int) -> int:
    """Return the rows of the run that a request of some rows is answered from."""
    reply = RecordedReply()
    queue.submit({"x": np.ones((rows, 3), np.float32)}, reply)
    same, counts = await reply.outputs()
    assert (same.shape, counts.shape) == ((rows, 3), (rows,))
    return int(counts[0])


@pytest.mark.parametrize("queue", ["callers", "copies", "shadow"])
async def test_each_queue_fills_them_up(disk: RegistryOnDisk, queue: str) -> None:
    """The queues share a session, which would prepare again after any run of another size."""
    engine = await engine_with(disk, FILLED)
    wanted: RequestQueue = engine
    if queue != "callers":
        wanted = engine.side_queue(max_requests=64, shadow=queue == "shadow")
    assert [await rows_run(wanted, rows) for rows in (1, 8, 9)] == [8, 8, 9]


@pytest.mark.parametrize(
    "profile",
    [
        replace(FILLED, change_seconds=0.0),
        replace(FILLED, max_batch_size=1, reason="larger batches are not faster here"),
    ],
)
async def test_where_it_does_not_pay_they_are_left(disk: RegistryOnDisk, profile: Profile) -> None:
    """A change costs nothing, or requests run one by one."""
    assert await rows_run(await engine_with(disk, profile), 3) == 3


async def test_a_version_that_was_seen_not_to_follow_is_not_filled_up(disk: RegistryOnDisk) -> None:
    """It is not filled up after another measurement either: the evidence of requests stays."""
    engine = await engine_with(disk, FILLED)
    engine.unbatched = True
    engine.adopt(MeasuredVersion(engine.profile, None, final=True))
    assert await rows_run(engine, 3) == 3
