"""A registry over a folder of real models, for tests with changing files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from cohort.batching import Outputs
from cohort.errors import CohortError
from cohort.onnx_engine import OnnxEngines, VersionOpener
from cohort.registry import BatchEngine, Registry, RegistryEvent, State
from cohort.repository import scan
from cohort.scheduling import Scheduler
from cohort.tensors import Arrays
from tests import onnx_models


class RegistryOnDisk:
    """A registry over the folder `models`, with every event that it reported."""

    def __init__(self, models: Path) -> None:
        self.models = models
        self.scheduler = Scheduler()
        self.events: list[RegistryEvent] = []
        self.batch_events: list[object] = []
        self.engines = OnnxEngines(
            wake=self.scheduler.wake,
            count=lambda model, version: self.batch_events.append,
            opener=VersionOpener(None),
        )
        self.registry = Registry([self.engines], observe=self.events.append)

    def keep_in(self, cache: Path) -> None:
        """Keep profiles and copies there from now on."""
        self.engines._opener = VersionOpener(cache)

    def put(self, version: int, name: str = "m") -> None:
        """Put a good model on disk."""
        onnx_models.save(onnx_models.mlp(), self.models / name / str(version) / "model.onnx")

    async def follow(self) -> None:
        """Scan the folder; begin to load and unload what changed."""
        self.registry.follow(await asyncio.to_thread(scan, self.models, None, quiet=0))

    async def reconcile(self) -> None:
        """Scan the folder; load and unload the changed versions, and wait until that has ended."""
        await self.follow()
        await self.registry.loaded()

    def states(self, model: str) -> dict[int, State]:
        """Return the states of a model's versions."""
        entry = self.registry.catalog.get(model)
        return {} if entry is None else {n: one.state for n, one in entry.versions.items()}

    async def infer(self, model: str, row: list[float]) -> Outputs:
        """Run one row on the model's default version."""
        engine = self.registry.lease(model)
        try:
            return await infer(engine, {"x": np.array([row], np.float32)})
        finally:
            engine.leases.release()


async def infer(engine: BatchEngine, inputs: Arrays) -> Outputs:
    """Submit `inputs` and wait for the outputs. Raises the error of the reply."""
    answer: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()

    def reply(outputs: Outputs | None, error: CohortError | None) -> None:
        if outputs is None:
            answer.set_exception(error or AssertionError("neither outputs nor an error"))
        else:
            answer.set_result(outputs)

    engine.submit(inputs, reply)
    return await answer
