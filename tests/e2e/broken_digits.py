"""Digits 3: digits 1, deliberately broken."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests import onnx_models
from tests.e2e.processes import MODELS


def copy_digits(models: Path) -> None:
    """Copy both good versions."""
    for version in ("1", "2"):
        shutil.copytree(MODELS / "digits" / version, models / "digits" / version)
    (models / "digits" / "config.yaml").write_text("versions: all\nproviders: [cpu]\n")


def save_broken(models: Path, how: str, *, version: int = 3) -> None:
    """Put a broken version next to the others."""
    onnx_models.save(BROKEN[how](), models / "digits" / str(version) / "model.onnx")


def _digits() -> tuple[onnx.ModelProto, onnx.GraphProto, str, str]:
    """Return the model, its graph, and the names of its input and its future output."""
    model = onnx.load(MODELS / "digits" / "1" / "model.onnx")
    graph = model.graph
    output = graph.output[0].name
    for node in graph.node:
        for place, name in enumerate(node.output):
            if name == output:
                node.output[place] = "good"
    return model, graph, graph.input[0].name, output


def _constant(graph: onnx.GraphProto, name: str, value: object) -> str:
    graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def raises() -> onnx.ModelProto:
    """Fails where an image's brightest pixel is above 1/2, as a look-up out of range does."""
    model, graph, image, output = _digits()
    table = _constant(graph, "table", np.zeros(1, np.float32))
    graph.node.extend(
        [
            helper.make_node("ReduceMax", [image, _constant(graph, "axes", [1, 2, 3])], ["max"],
                             keepdims=0),
            helper.make_node("Add", ["max", _constant(graph, "half", np.float32(0.5))], ["moved"]),
            helper.make_node("Cast", ["moved"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", [table, "index"], ["nothing"]),
            helper.make_node("Unsqueeze", ["nothing", _constant(graph, "one", [1])], ["column"]),
            helper.make_node("Add", ["good", "column"], [output]),
        ]
    )  # fmt: skip
    return _checked(model)


def slow() -> onnx.ModelProto:
    """Right, after a long chain of products that come to nothing."""
    model, graph, image, output = _digits()
    graph.node.extend(
        [
            helper.make_node("ReduceSum", [image], ["sum"], keepdims=0),
            helper.make_node("Mul", ["sum", _constant(graph, "zero", np.float32(0))], ["nil"]),
            helper.make_node("Expand", ["nil", _constant(graph, "size", [192, 192])], ["product0"]),
        ]
    )
    for number in range(60):
        names = [f"product{number}", f"product{number}"]
        graph.node.append(helper.make_node("MatMul", names, [f"product{number + 1}"]))
    graph.node.extend(
        [
            helper.make_node("ReduceSum", ["product60"], ["nothing"], keepdims=0),
            helper.make_node("Add", ["good", "nothing"], [output]),
        ]
    )
    return _checked(model)


def wrong() -> onnx.ModelProto:
    """Takes each digit for its mirror image among the ten."""
    model, graph, _, output = _digits()
    order = _constant(graph, "order", np.arange(10)[::-1].copy())
    graph.node.append(helper.make_node("Gather", ["good", order], [output], axis=1))
    return _checked(model)


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    del model.metadata_props[:]
    onnx.checker.check_model(model)
    return model


BROKEN: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "raises": raises,
    "slow": slow,
    "wrong": wrong,
}
