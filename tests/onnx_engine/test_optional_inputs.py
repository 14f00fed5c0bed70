"""Requests that set an input which has a default, and copies of them: each runs alone."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from cohort.batching import Outputs
from cohort.errors import CohortError
from cohort.registry import RequestQueue
from cohort.tensors import Arrays
from tests import onnx_models
from tests.engines import batching_of
from tests.registry.on_disk import RegistryOnDisk

# There are as many rows as terms, so that both could be joined: the sum would then include others'
# terms.
SET: Arrays = {"x": np.ones((2, 3), "f4"), "terms": np.ones(2, "f4")}


@pytest.mark.parametrize("queue", ["callers", "copies", "shadow"])
async def test_they_are_not_joined(disk: RegistryOnDisk, queue: str) -> None:
    """Eight at once, in a queue whose other requests are."""
    onnx_models.save(onnx_models.with_default_sum(), disk.models / "m/1/model.onnx")
    await disk.reconcile()
    engine = disk.registry.lease("m")
    assert batching_of(engine).policy.batches
    wanted: RequestQueue = engine
    if queue != "callers":
        wanted = engine.side_queue(max_requests=64, shadow=queue == "shadow")
    answers: list[Outputs | CohortError | None] = []
    done = asyncio.Event()

    def reply(outputs: Outputs | None, error: CohortError | None) -> None:
        answers.append(outputs or error)
        if len(answers) == 8:
            done.set()

    for _ in range(8):
        wanted.submit(SET, reply)
    await done.wait()
    for answer in answers:
        assert isinstance(answer, list)
        assert answer[0].tolist() == [[3.0] * 3] * 2
