"""Integer divisions that would end the process give wrapped results of the same bit width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cohort.model_file.model import read_model
from cohort.session import Provider, Session, open_session
from cohort.session.divisions import Divisions, find_divisions
from cohort.tensors import Array
from tests import onnx_models

ON_CPU = (Provider("cpu"),)
LEAST = -(2**63)
CONSTANTS = {"two": 2, "minus_one": -1, "one": 1}


def opened(model: onnx.ModelProto, folder: Path) -> Session:
    return open_session(onnx_models.save(model, folder / "1" / "model.onnx"), chain=ON_CPU)


def model_of(
    nodes: list[onnx.NodeProto], *, x: int = TensorProto.INT64, y: int = TensorProto.INT64
) -> onnx.ModelProto:
    """`x` and `d` [N] → `y` [N], with `CONSTANTS`."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("x", x, ["N"]),
            helper.make_tensor_value_info("d", TensorProto.INT64, ["N"]),
        ],
        [helper.make_tensor_value_info("y", y, ["N"])],
        [numpy_helper.from_array(np.array(value), name) for name, value in CONSTANTS.items()],
    )
    opsets = [helper.make_opsetid("", onnx_models.OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=onnx_models.IR_VERSION)


def found(model: onnx.ModelProto, folder: Path) -> Divisions:
    path = onnx_models.save(model, folder / "1" / "model.onnx")
    return find_divisions(read_model(path, 1000).graphs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_the_least_number_by_minus_one_wraps_around(
    operator: str, dtype: type[np.signedinteger], tmp_path: Path
) -> None:
    """The result equals numpy's; every other division is unchanged."""
    least = np.iinfo(dtype).min
    a = np.array([least, least, least + 1, 7, -7, least], dtype)
    b = np.array([-1, 1, -1, -1, 2, least], dtype)
    name = {np.int32: "INT32", np.int64: "INT64"}[dtype]
    session = opened(onnx_models.divide(operator, name), tmp_path)
    wrapped: list[int] = [least, least, -(least + 1), -7, -3, 1]
    remains = [0, 0, 0, 0, 1, 0]
    assert session.run({"a": a, "b": b})[0].tolist() == (wrapped if operator == "Div" else remains)


N = helper.make_node
DIVIDE = [N("Div", ["a", "d"], ["y"])]
BRANCH = helper.make_graph(
    [N("Div", ["x", "d"], ["z"])],
    "branch",
    [],
    [helper.make_tensor_value_info("z", TensorProto.INT64, None)],
)


@pytest.mark.parametrize(
    ("nodes", "kind", "x"),
    [
        ([N("Cast", ["x"], ["a"], to=TensorProto.INT64), *DIVIDE], "f4", np.nan),
        ([N("Div", ["x", "minus_one"], ["y"])], "i8", LEAST),
        ([N("Mul", ["x", "two"], ["a"]), *DIVIDE], "i8", LEAST // 2),
        (
            [
                N("Greater", ["two", "one"], ["yes"]),
                N("If", ["yes"], ["y"], then_branch=BRANCH, else_branch=BRANCH),
            ],
            "i8",
            LEAST,
        ),
    ],
    ids=["of a NaN", "by a constant", "of a result", "in a branch"],
)
def test_whatever_makes_the_numbers(
    nodes: list[onnx.NodeProto], kind: str, x: float, tmp_path: Path
) -> None:
    """The numbers need not come from an input."""
    model = model_of(nodes, x=TensorProto.FLOAT if kind == "f4" else TensorProto.INT64)
    feeds: dict[str, Array] = {"x": np.array([x], kind), "d": np.array([-1])}
    assert opened(model, tmp_path).run(feeds)[0].tolist() == [LEAST]


@pytest.mark.parametrize(
    "nodes",
    [
        [N("Div", ["x", "two"], ["y"])],
        [N("Shape", ["d"], ["s"]), N("Gather", ["s", "zero"], ["n"]), N("Div", ["x", "n"], ["y"])],
        [N("Cast", ["x"], ["f"], to=1), N("Sqrt", ["f"], ["g"]), N("Div", ["f", "g"], ["h"]),
         N("Cast", ["h"], ["y"], to=7)],
        [N("Mod", ["x", "d"], ["y"], fmod=1)],
        [N("Identity", ["x"], ["y"])],
    ],
    ids=["a constant", "a size", "floats", "fmod", "none"],
)  # fmt: skip
def test_models_that_cannot_meet_it_are_opened_as_they_are(
    nodes: list[onnx.NodeProto], tmp_path: Path
) -> None:
    """Their divisor is never -1, or they divide floats."""
    model = model_of(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "zero"))
    assert not found(model, tmp_path).any


def test_a_default_of_an_input_is_no_constant(tmp_path: Path) -> None:
    """Its caller may send another value."""
    model = model_of([N("Div", ["x", "two"], ["y"])])
    model.graph.input.append(helper.make_tensor_value_info("two", TensorProto.INT64, []))
    assert found(model, tmp_path).bits == {(0,): 64}


def test_a_division_in_a_function_is_left_as_it_is(tmp_path: Path) -> None:
    """Its type is not declared; an inspection tries it."""
    divisions = found(onnx_models.divide(function=True), tmp_path)
    assert divisions == Divisions({}, unknown=True)
