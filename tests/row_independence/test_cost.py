"""Which models do more or less work by the values of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cohort.errors import LoadFailed
from cohort.model_file.model import parse_model, read_model
from cohort.row_independence import prove_rows
from cohort.session import Provider, open_session
from tests import onnx_models

ROOT = Path(__file__).parents[2]

PREDICTABLE: tuple[Callable[[], onnx.ModelProto], ...] = (
    onnx_models.mlp,
    onnx_models.identity,
    onnx_models.gather,
    onnx_models.rows_sum,
    onnx_models.dynamically_quantized,
    onnx_models.strings,
    onnx_models.variable_length,
    onnx_models.sequence_and_tensor,
    onnx_models.reshaped,
)


def dependence(model: onnx.ModelProto) -> str:
    content = memoryview(model.SerializeToString())
    return prove_rows(parse_model(content, max_nodes=10**19).graphs).dependence


def graph(nodes: list[onnx.NodeProto], weights: dict[str, object]) -> onnx.ModelProto:
    """`x` FP32 [N, 4] and `k` INT64 [1] → `y`."""
    made = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("k", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize("make", PREDICTABLE, ids=lambda make: make.__name__)
def test_ordinary_models_are_predictable(make: Callable[[], onnx.ModelProto]) -> None:
    """Sizes from weights and from the shapes of inputs do not require leaving the event loop."""
    assert not dependence(make())


def test_bundled_models_are_predictable() -> None:
    """Trees with a ZipMap and a small network keep their place on the event loop."""
    models = [
        path
        for path in (ROOT / "models").glob("*/*/model.onnx")
        if not (path.parent / "genai_config.json").exists()  # its steps never run on the loop
    ]
    assert models
    assert [prove_rows(read_model(path).graphs).dependence for path in models] == [""] * len(models)


def test_networks_of_the_onnx_package_are_predictable() -> None:
    """The ONNX project's test networks are predictable: ResNet, DenseNet, SqueezeNet and others."""
    models = list((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))
    assert len(models) > 5
    assert {prove_rows(read_model(path).graphs).dependence for path in models} == {""}


@pytest.mark.parametrize("nested", [False, True])
def test_a_trip_count_from_an_input_is_found(nested: bool) -> None:
    """It is found even in a branch of an If in a function of the model."""
    assert (
        dependence(onnx_models.loop(nested=nested))
        == "the run time of Loop depends on input values"
    )


def test_a_size_from_an_input_is_found(tmp_path: Path) -> None:
    """The session reports it."""
    path = onnx_models.save(onnx_models.fill(), tmp_path / "1" / "model.onnx")
    session = open_session(path, chain=(Provider("cpu"),))
    assert session.unpredictable == "the run time of Expand depends on input values"


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("Expand", ["x", "k"]),
        ("Tile", ["x", "k"]),
        ("ConstantOfShape", ["k"]),
        ("Range", ["zero", "k", "one"]),
        ("NonZero", ["x"]),
        ("NonMaxSuppression", ["x", "x"]),
        ("Resize", ["x", "", "", "k"]),
        ("Pad", ["x", "k"]),
        ("OneHot", ["one", "k", "one"]),
        ("TopK", ["x", "k"]),
        ("Slice", ["x", "zero", "k"]),
        ("Reshape", ["x", "k"]),
        ("Compress", ["x", "k"]),
    ],
)
def test_operators_that_values_decide_are_found(operator: str, inputs: list[str]) -> None:
    """The deciding input is the caller's, whatever nodes are between."""
    nodes = [
        helper.make_node("Add", ["k", "one"], ["more"]),
        helper.make_node(operator, ["more" if name == "k" else name for name in inputs], ["y"]),
    ]
    model = graph(nodes, {"one": np.array([1]), "zero": np.array([0])})
    assert dependence(model) == f"the run time of {operator} depends on input values"


@pytest.mark.parametrize("operator", ["BeamSearch", "GreedySearch", "Sampling"])
def test_searches_are_never_predictable(operator: str) -> None:
    """They run until their own outputs end them, whatever they are given."""
    node = helper.make_node(operator, ["x"], ["y"], domain="com.microsoft")
    assert operator in dependence(graph([node], {}))


def test_unknown_operators_are_not_predictable() -> None:
    """The behaviour of an operator of another domain is unknown."""
    node = helper.make_node("Anything", ["x"], ["y"], domain="org.example")
    reason = "the run time of 'org.example.Anything' may depend on input values"
    assert dependence(graph([node], {})) == reason


def _condition(last: str) -> onnx.ModelProto:
    """Return a Loop of at most 1000 trips that ends when `last`, a node's output, is false."""
    infos = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
    ]
    body = helper.make_graph(
        [
            helper.make_node("Less", ["i", "k"], ["by_value"]),
            helper.make_node("Less", ["i", "limit"], ["by_number"]),
        ],
        "body",
        infos,
        [helper.make_tensor_value_info(last, TensorProto.BOOL, None)],
    )
    node = helper.make_node("Loop", ["limit", "true"], [], body=body)
    copy = helper.make_node("Identity", ["x"], ["y"])
    return graph([node, copy], {"limit": np.int64(1000), "true": np.array(True)})


def test_a_loop_may_end_by_values() -> None:
    """It is found if values end it, and not if the file has its number of trips."""
    assert not dependence(_condition("by_number"))
    assert dependence(_condition("by_value")) == "when Loop ends depends on input values"


def test_a_function_is_judged_by_what_each_call_gives_it() -> None:
    """One called with a constant size is predictable, one called with an input is not."""
    function = helper.make_function(
        "tests", "Grow", ["values", "size"], ["grown"],
        [helper.make_node("Expand", ["values", "size"], ["grown"])],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip

    def called_with(size: str) -> str:
        node = helper.make_node("Grow", ["x", size], ["y"], domain="tests")
        model = graph([node], {"size": np.array([1])})
        model.functions.append(function)
        return dependence(model)

    assert not called_with("size")
    assert called_with("k") == "the run time of Expand depends on input values"


def test_functions_in_a_circle_are_refused() -> None:
    """The search ends, and no runtime opens them."""
    model = graph([helper.make_node("A", ["x"], ["y"], domain="tests")], {})
    for name, other in (("A", "B"), ("B", "A")):
        node = helper.make_node(other, ["x"], ["y"], domain="tests")
        model.functions.append(
            helper.make_function("tests", name, ["x"], ["y"], [node], [helper.make_opsetid("", 21)])
        )
    with pytest.raises(LoadFailed, match="its functions call each other in a circle"):
        dependence(model)


def test_calls_that_double_are_not_followed_to_their_end() -> None:
    """Sixty functions that call the last one twice each do not lead to a walk over 2^60 nodes."""
    model = graph([helper.make_node("F59", ["x"], ["y"], domain="tests")], {})
    model.functions.extend(onnx_models.doubling_functions("tests", 60))
    assert dependence(model) == "the graph is too large to follow"


def test_values_that_are_never_computed_count_as_the_callers() -> None:
    """The runtime sorts nodes itself; nodes that need each other are not trusted."""
    nodes = [
        helper.make_node("Expand", ["x", "size"], ["y"]),
        helper.make_node("Shape", ["x"], ["size"]),
    ]
    assert not dependence(graph(nodes, {}))
    assert not dependence(graph(nodes[::-1], {}))
    circle = [
        helper.make_node("Expand", ["x", "size"], ["y"]),
        helper.make_node("Abs", ["y"], ["size"]),
    ]
    assert dependence(graph(circle, {}))


def test_models_of_more_nodes_than_allowed_are_refused() -> None:
    """A model with more nodes than allowed is refused, to bound the time that a file takes."""
    nodes = [helper.make_node("Relu", ["x"], [f"y{number}"]) for number in range(4)]
    content = memoryview(graph(nodes, {}).SerializeToString())
    assert parse_model(content, max_nodes=4).graphs.count_nodes() == 4
    with pytest.raises(LoadFailed, match=r"more than 3 nodes; at most 3 .*COHORT_MAX_NODES"):
        parse_model(content, max_nodes=3)


def test_nodes_of_functions_count_at_each_call() -> None:
    """31 functions, each calling the one before twice, are 2^31 nodes of two kilobytes."""
    model = graph([helper.make_node("F30", ["x"], ["y"], domain="tests")], {})
    model.functions.extend(onnx_models.doubling_functions("tests", 31))
    with pytest.raises(LoadFailed, match=r"2,147,483,648 nodes, .*; at most 1,000,000"):
        parse_model(memoryview(model.SerializeToString()))
