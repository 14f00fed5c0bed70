"""Kernels that compute with rows, if the rounding of a row may depend on the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.row_independence.test_verdicts import Value, W, model, node, prove

DOUBLE, HALF = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16


def of(*shape: int | str, dtype: int = onnx.TensorProto.FLOAT) -> Value:
    return ("x", dtype, ["N", *shape])


REDUCE: dict[str, Any] = {"keepdims": 0}


@pytest.mark.parametrize(
    ("given", "nodes", "kernels"),
    [
        (of(16), [node("Log", "x", "y")], ["Log"]),
        (of(3, 32), [node("Log", "x", "y")], ["Log"]),
        (of("T", 16), [node("Log", "x", "y")], ["Log"]),
        (of(15), [node("Log", "x", "y")], ["Log (unaligned)"]),
        (of("T"), [node("Log", "x", "y")], ["Log (unaligned)"]),
        (of(8, dtype=DOUBLE), [node("Exp", "x", "y")], ["Exp (FP64)"]),
        (of(8, dtype=HALF), [node("Exp", "x", "y")], ["Exp (FP16, unaligned)"]),
        (of(4, 16), [node("ReduceSum", "x last", "y", **REDUCE)], ["ReduceSum"]),
        (
            of(4, 16),
            [node("ReduceSum", "x one", "y", **REDUCE)],
            ["ReduceSum (inner axes)"],
        ),
        (
            of(16),
            [node("Transpose", "x", "t", perm=[1, 0]), node("Tanh", "t", "y")],
            ["Transpose", "Tanh (rows along another axis, unaligned)"],
        ),
        (of(4, 4), [node("Relu", "x", "y"), node("Relu", "y", "z")], ["Relu"]),
    ],
)
def test_a_kernel_is_named_with_what_its_rounding_may_depend_on(
    given: Value, nodes: list[onnx.NodeProto], kernels: list[str]
) -> None:
    """A row of whole vectors begins where a vector does, whatever rows are before it."""
    weights = {"last": np.array([-1]), "one": np.array([1])}
    verdict = prove(model(nodes, [given], nodes[-1].output[0], weights))
    assert list(verdict.kernels) == kernels


def test_the_first_node_stands_for_a_kernel() -> None:
    """Its name is the one that a person finds in the graph."""
    nodes = [node("Log", "x", "first"), node("Log", "first", "second")]
    assert prove(model(nodes, [of(5)], "second")).kernels == {"Log (unaligned)": "Log 'first'"}


def test_what_has_no_rows_rounds_the_same_for_everyone() -> None:
    """Nodes that take constants only, and sizes."""
    nodes = [node("Log", "w", "v"), node("Shape", "x", "s"), node("MatMul", "x v", "y")]
    verdict = prove(model(nodes, [("x", onnx.TensorProto.FLOAT, ["N", 4])], "y", {"w": W + 1}))
    assert list(verdict.kernels) == ["Shape (unaligned)", "MatMul (unaligned)"]


def test_a_verdict_without_a_proof_names_no_kernels() -> None:
    """Only proven models need them."""
    assert not prove(model([node("Softmax", "x", "y", axis=0)], [of(4)])).kernels
