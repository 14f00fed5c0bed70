"""The runtime accepts the versions of models that docs/operations/compatibility.md states."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.e2e.processes import ROOT

PAGE = (ROOT / "docs/operations/compatibility.md").read_text(encoding="utf-8")


def stated(row: str) -> list[tuple[int, bool]]:
    """Return the first and the last version of a row's range and the next one; True: it works."""
    found = re.search(rf"^\| {re.escape(row)} \| (\d+) to (\d+)", PAGE, re.MULTILINE)
    assert found, row
    first, last = int(found[1]), int(found[2])
    return [(first, True), (last, True), (last + 1, False)]


def opens(*, opset: int = 17, scaler: int = 3, ir: int = 8) -> bool:
    """Return True if the runtime runs a model of these versions."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Scaler", ["r"], ["y"], domain="ai.onnx.ml", offset=[0.0], scale=[2.0]),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    model = helper.make_model(
        helper.make_graph(nodes, "g", [value], [result]),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", scaler)],
        ir_version=ir,
    )
    try:
        session = ort.InferenceSession(
            onnx.ModelProto.SerializeToString(model), providers=["CPUExecutionProvider"]
        )
    except ort.capi.onnxruntime_pybind11_state.Fail:
        return False
    (answer,) = session.run(None, {"x": np.array([3.0], np.float32)})
    return bool(answer == 6.0)


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ("opset of `ai.onnx`", "opset"),
        ("opset of `ai.onnx.ml`", "scaler"),
        ("IR version of a model", "ir"),
    ],
)
def test_the_runtime_accepts_the_range_on_the_page(row: str, part: str) -> None:
    """Both ends run, and the version after the last one is refused."""
    assert [(at, opens(**{part: at})) for at, _ in stated(row)] == stated(row)
