"""Which runs may execute on the event loop, by how long they take there."""

from __future__ import annotations

import pytest

from cohort.batching import BatchPolicy
from cohort.onnx_engine.batched_session import BatchedSession
from tests.registry.on_disk import RegistryOnDisk

WAITING = 0.5
"""Seconds until a run has the interpreter's lock again, which another thread holds."""


@pytest.mark.parametrize(("own", "expected"), [(1e-6, True), (WAITING, False)])
async def test_runs_that_only_waited_stay_on_the_loop(
    disk: RegistryOnDisk, own: float, expected: bool
) -> None:
    """Elsewhere they would wait for the lock more often; those that are slow themselves leave."""
    disk.put(1)
    await disk.reconcile()
    engine = disk.registry.find("m").engine
    assert isinstance(engine, BatchedSession)
    engine._inline_pace = 4.0  # whatever batch size paid on this machine
    engine._batcher.policy = BatchPolicy()
    for _ in range(100):
        engine._batcher.estimate.follow(1, WAITING, own)
    assert (engine.inline_rows > 1) == expected
