"""A registry over a folder of models and pipelines, and small models for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cohort.metrics import Metrics, StepMetrics
from cohort.onnx_engine import OnnxEngines, VersionOpener
from cohort.pipelines import PipelineEngines
from cohort.registry import Registry, RegistryEvent, State, VersionEntry
from cohort.repository import scan
from cohort.scheduling import Scheduler
from cohort.tensors import Array, Arrays
from tests import onnx_models
from tests.fakes import make_metrics
from tests.planes import infer, make_data_plane


def affine(
    factor: float = 1.0, offset: float = 0.0, *, width: int = 4, inputs: Sequence[str] = ("x",)
) -> onnx.ModelProto:
    """FP32 [N, width] each → `y` FP32 [N, width]: the sum of the inputs times factor + offset."""
    nodes, last = [], inputs[0]
    for place, name in enumerate(inputs[1:]):
        nodes.append(helper.make_node("Add", [last, name], [f"sum{place}"]))
        last = f"sum{place}"
    nodes.append(helper.make_node("Mul", [last, "factor"], ["scaled"]))
    nodes.append(helper.make_node("Add", ["scaled", "offset"], ["y"]))
    weights = [
        numpy_helper.from_array(np.array(factor, np.float32), "factor"),
        numpy_helper.from_array(np.array(offset, np.float32), "offset"),
    ]
    shape: list[str | int | None] = ["N", width]
    of = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "affine", of, [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def ends(model: onnx.ModelProto) -> tuple[str, str]:
    """Return the names of a model's first input and output."""
    return model.graph.input[0].name, model.graph.output[0].name


def alone(name: str, model: onnx.ModelProto) -> str:
    """Return a pipeline whose only step, `s`, runs a model of x: its y."""
    taken, given = ends(model)
    return f"steps: {{s: {{model: {name}, inputs: {{{taken}: x}}}}}}\noutputs: {{y: s.{given}}}"


class Graphs:
    """A registry of models and pipelines over a folder; models are `measured` if asked."""

    def __init__(self, models: Path, *, measured: bool = False) -> None:
        self.models = models
        self.scheduler = Scheduler()
        self.events: list[RegistryEvent] = []
        self.metrics: Metrics = make_metrics()
        self.steps = StepMetrics(self.metrics)
        self.metrics.register(self.steps)
        onnx_engines = OnnxEngines(
            wake=self.scheduler.wake, count=self.metrics.batches_of, opener=VersionOpener(None)
        )
        if not measured:
            onnx_engines.close()
        pipelines = PipelineEngines(lambda: self.registry, count=self.steps.steps_of)
        self.registry = Registry([onnx_engines, pipelines], observe=self.events.append)
        self.plane = make_data_plane(self.registry, self.metrics)

    def put(self, name: str, model: onnx.ModelProto | str, version: int = 1) -> None:
        """Put a model, or a pipeline's text, where a version belongs."""
        folder = self.models / name / str(version)
        if isinstance(model, str):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "pipeline.yaml").write_text(model)
        else:
            onnx_models.save(model, folder / "model.onnx")

    async def load(self) -> None:
        """Load what is on disk now."""
        snapshot = await asyncio.to_thread(
            scan, self.models, None, quiet=0, kinds=self.registry.kinds
        )
        self.registry.follow(snapshot)
        await self.registry.loaded()

    def entry(self, name: str, version: int = 1) -> VersionEntry:
        return self.registry.catalog[name].versions[version]

    def reason(self, name: str) -> str:
        """Why a version is UNAVAILABLE, which it must be."""
        entry = self.entry(name)
        assert entry.state is State.UNAVAILABLE
        return entry.reason

    async def ask(
        self, name: str, inputs: Arrays, *, timeout: float | None = None
    ) -> dict[str, Array]:
        """Ask a model; its outputs by name."""
        with self.plane.pick(name) as lease:
            outputs = await infer(lease, inputs, timeout=timeout)
            return dict(zip([spec.name for spec in lease.outputs], outputs, strict=True))

    @property
    def leases(self) -> dict[str, int]:
        """The leases of each READY version that has some."""
        return {
            name: entry.engine.leases.count
            for name, model in self.registry.catalog.items()
            for entry in model.versions.values()
            if entry.engine is not None and entry.engine.leases.count
        }

    def close(self) -> None:
        self.registry.close()
        self.scheduler.close()


def rows(*values: float, width: int = 4) -> Arrays:
    """Return an input x whose rows have one value each."""
    return {"x": np.repeat(np.array(values, np.float32)[:, None], width, 1)}
