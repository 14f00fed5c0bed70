"""Drawings of a model's file, compared with its contents as `onnx` reads them."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from cohort.inspection.drawing import draw_model
from cohort.inspection.drawing import reading as module
from cohort.inspection.drawing.attributes import read_attribute
from cohort.inspection.drawing.blocks import FEW, MIN_FOLDED, find_blocks
from cohort.inspection.drawing.reading import MAX_DRAWN, MAX_GRAPHS
from cohort.inspection.drawing.words import describe_shape, describe_tensor
from cohort.model_file.protobuf import FileSlice
from tests import onnx_models
from tests.e2e.processes import MODELS

OPERATORS = st.sampled_from(["Relu", "Add", "Concat", "Split", "Custom"])
NAMES = st.text(max_size=6)
ATTRIBUTES = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=5)
    | st.lists(st.integers(-5, 5), min_size=1, max_size=40)
    | st.lists(st.floats(-5, 5, width=16), min_size=1, max_size=40),
    max_size=3,
)


@st.composite
def nodes(draw: st.DrawFn) -> list[onnx.NodeProto]:
    """Nodes of any operators between any values."""
    return [
        helper.make_node(
            draw(OPERATORS),
            draw(st.lists(NAMES, max_size=4)),
            draw(st.lists(NAMES, max_size=3)),
            name=draw(NAMES),
            domain=draw(st.sampled_from(["", "com.example"])),
            **cast(dict[str, Any], draw(ATTRIBUTES)),
        )
        for _ in range(draw(st.integers(0, 12)))
    ]


def saved(path: Path, *made: onnx.NodeProto, **more: Any) -> Path:
    """A model of these nodes that need not make sense."""
    graph = helper.make_graph(list(made), "g", [], [], **more)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def main(path: Path, **providers: str) -> dict[str, Any]:
    """The main graph."""
    return draw_model(path, providers).graphs[0]


def names(graph: dict[str, Any], numbers: list[int]) -> list[str]:
    return [graph["values"][number][0] for number in numbers]


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(made=nodes())
def test_every_node_is_read_as_onnx_reads_it(
    made: list[onnx.NodeProto], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its operator, names, and values; of its attributes as many as there are."""
    path = saved(tmp_path_factory.mktemp("any") / "m.onnx", *made)
    drawn = main(path)
    assert [(one["op"], one["domain"], one["name"]) for one in drawn["nodes"]] == [
        (one.op_type, one.domain, one.name) for one in made
    ]
    for node, wanted in zip(drawn["nodes"], made, strict=True):
        assert names(drawn, node["in"]) == list(wanted.input)
        assert names(drawn, node["out"]) == list(wanted.output)
        assert [name for name, _ in node["attributes"]] == [one.name for one in wanted.attribute]
        for (_, text), attribute in zip(node["attributes"], wanted.attribute, strict=True):
            value = helper.get_attribute_value(attribute)
            if isinstance(value, int):
                assert text == str(value)
            elif isinstance(value, bytes):
                assert text == value.decode()
            else:
                shown = [float(one) for one in text.strip("[]").split(",") if "…" not in one]
                assert shown == pytest.approx(value[:16], rel=1e-4)
                assert text.endswith(f"… ({len(value)})]") == (len(value) > 16)


def test_types_and_weights_are_told(tmp_path: Path) -> None:
    """Types in the file and constants, which are not nodes, are shown without their numbers."""
    secret = np.array([123456.0, 7.0], np.float32)
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(secret, "t"))
    add = helper.make_node("Add", ["x", "c"], ["y"])
    mul = helper.make_node("Mul", ["y", "w"], ["z"])
    known = helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["N", 2, None])
    graph = helper.make_graph(
        [constant, add, mul],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(secret.astype(np.int8), "w")],
        value_info=[known],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    drawn = draw_model(path, {}, {"z": "FP32 [N, 2, 2]"})
    (found,) = drawn.graphs
    types = dict(found["values"])
    assert types["x"] == "FP32 [N, 2]"
    assert types["y"] == "FP16 [N, 2, ?]"
    assert types["z"] == "FP32 [N, 2, 2]"
    weights = {names(found, [number])[0]: text for number, text in found["weights"].items()}
    assert weights == {"c": "FP32 [2]", "w": "INT8 [2]"}
    assert [node["op"] for node in found["nodes"]] == ["Add", "Mul"]
    assert [node["at"] for node in found["nodes"]] == [1, 2], "constants count"
    assert "123456" not in str(drawn)


def test_what_another_domain_calls_a_constant_is_a_node(tmp_path: Path) -> None:
    """A `Constant` of a custom domain is drawn as a node; one of ONNX is a weight."""
    made = helper.make_node("Constant", [], ["c"], domain="d")
    number = helper.make_node("Constant", [], ["n"], value_float=0.5)
    drawn = main(saved(tmp_path / "m.onnx", made, number))
    assert [node["op"] for node in drawn["nodes"]] == ["Constant"]
    assert list(drawn["weights"].values()) == ["constant"]


def test_a_sparse_weight_is_told_with_its_shape(tmp_path: Path) -> None:
    """It has the name of its values."""
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    places = helper.make_tensor("", TensorProto.INT64, [2], [3, 5])
    sparse = helper.make_sparse_tensor(values, places, [2, 6])
    drawn = main(saved(tmp_path / "m.onnx", sparse_initializer=[sparse]))
    assert {names(drawn, [one])[0]: text for one, text in drawn["weights"].items()} == {
        "w": "sparse FP32 [2, 6]"
    }


def test_types_that_are_given_are_those_of_the_main_graph(tmp_path: Path) -> None:
    """A value of a subgraph may have the name of another."""
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "inner", [], [])
    nested = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    path = saved(tmp_path / "m.onnx", nested)
    outer, *inside = draw_model(path, {}, {"y": "FP32 [9]"}).graphs
    assert ("y", "FP32 [9]") in outer["values"]
    assert len(inside) == 2
    assert all(("y", "") in graph["values"] for graph in inside)


def test_lists_of_texts_are_told(tmp_path: Path) -> None:
    """Texts are shown up to a limit, and the number of texts is shown."""
    made = helper.make_node("X", [], [], words=["a", "b"], many=["w" * 999] * 20, half=0.5)
    (node,) = main(saved(tmp_path / "m.onnx", made))["nodes"]
    told = dict(node["attributes"])
    assert told["words"] == "[a, b]"
    assert told["half"] == "0.5"
    assert told["many"].startswith("[www")


def test_a_graph_that_is_a_number_is_none() -> None:
    """A damaged file can have another wire type for an attribute's graph."""
    for number in (6, 11):
        content = b"\x0a\x01a" + bytes([number << 3]) + b"\x05"
        found = read_attribute(FileSlice(io.BytesIO(content), 0, len(content)))
        assert (found.name, list(found.graphs)) == ("a", [])


def test_shapes_of_very_many_dimensions_are_cut() -> None:
    """An ellipsis stands for the rest."""
    assert describe_shape([1] * 64) == f"[{', '.join(['1'] * 64)}]"
    assert describe_shape([1] * 65) == f"[{', '.join(['1'] * 64)}, …]"
    assert describe_shape(["N", None, 3]) == "[N, ?, 3]"


def test_layers_are_folded_where_there_are_many_nodes() -> None:
    """The longest repetition is folded, from its beginning."""
    stem = [f"Op{place}" for place in range(FEW)]
    assert find_blocks([*stem, *"abcde" * 6]) == [(FEW, 5, 6)]
    assert find_blocks([*"abc"] * (FEW // 3)) == []
    assert find_blocks([*"abc"] * (FEW // 3 + 1)) == [(0, 3, FEW // 3 + 1)]


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), st.integers(1, 30)),
        max_size=5,
    )
)
def test_blocks_repeat_and_do_not_overlap(parts: list[tuple[list[str], int]]) -> None:
    """This holds for any operators; there are blocks only if there are many nodes."""
    operators = [one for block, times in parts for one in block * times]
    blocks = find_blocks(operators)
    assert not blocks or len(operators) > FEW
    end = 0
    for start, length, times in blocks:
        assert start >= end
        end = start + length * times
        assert end <= len(operators)
        assert operators[start:end] == operators[start : start + length] * times
        assert length > 2 and times > 1 and length * times >= MIN_FOLDED  # noqa: PT018


def test_nodes_know_who_runs_them(tmp_path: Path) -> None:
    """Providers are found by node names; a node without a name has no provider."""
    first, second = (
        helper.make_node("Relu", ["x"], ["y"], name="a"),
        helper.make_node("Neg", [], []),
    )
    drawn = draw_model(saved(tmp_path / "m.onnx", first, second), {"a": "cuda", "": "cpu"})
    assert [node["provider"] for node in drawn.graphs[0]["nodes"]] == ["cuda", ""]


def test_subgraphs_and_functions_can_be_opened(tmp_path: Path) -> None:
    """Each node leads to the graphs in it and to the function that it calls."""
    path = onnx_models.save(onnx_models.loop(), tmp_path / "loop.onnx")
    drawn = draw_model(path, {})
    (loop,) = [node for node in drawn.graphs[0]["nodes"] if node["graphs"]]
    (body,) = loop["graphs"]
    assert drawn.graphs[body]["title"].startswith("Loop")
    assert drawn.graphs[body]["nodes"]
    function = helper.make_function(
        "d", "F", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], []
    )
    graph = helper.make_graph([helper.make_node("F", ["x"], ["y"], domain="d")], "g", [], [])
    path.write_bytes(helper.make_model(graph, functions=[function]).SerializeToString())
    drawn = draw_model(path, {})
    (called,) = drawn.graphs[0]["nodes"][0]["graphs"]
    assert drawn.graphs[called]["title"] == "function F"
    assert names(drawn.graphs[called], drawn.graphs[called]["inputs"]) == ["a"]


def test_too_many_nodes_and_graphs_are_counted(tmp_path: Path) -> None:
    """The first ones are drawn, and the others are counted."""
    relu = helper.make_node("Relu", ["x"], ["y"])
    drawn = draw_model(saved(tmp_path / "m.onnx", *[relu] * (MAX_DRAWN + 5)), {})
    assert len(drawn.graphs[0]["nodes"]) == MAX_DRAWN
    assert drawn.left_out == "not drawn: 5 nodes after the first ones of their graph"
    inner = helper.make_graph([relu], "inner", [], [])
    nested = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    drawn = draw_model(saved(tmp_path / "m.onnx", *[nested] * MAX_GRAPHS), {})
    assert len(drawn.graphs) == MAX_GRAPHS + 1
    assert drawn.left_out == f"not drawn: {MAX_GRAPHS} subgraphs or functions"


def test_what_is_written_is_bounded(tmp_path: Path) -> None:
    """Names of megabytes are cut, and nodes with very many values use up the room."""
    long = "n" * (1 << 20)
    path = saved(tmp_path / "m.onnx", helper.make_node(long, [long], ["y"], name=long, a=long))
    assert len(str(draw_model(path, {long: "cpu"}))) < 3000
    wide = helper.make_node("Concat", [f"v{number}" for number in range(20_000)], ["y"])
    drawn = draw_model(saved(tmp_path / "m.onnx", *[wide] * 40), {})
    assert "nodes after the first ones" in drawn.left_out
    assert len(str(drawn)) < 20_000_000


def test_descriptions_of_weights_use_up_the_room_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each description is cut; those without room become an ellipsis."""
    monkeypatch.setattr(module, "MAX_LETTERS", 10_000)
    weights = [
        onnx.TensorProto(name=f"w{one}", data_type=1, dims=[9**18] * 64) for one in range(99)
    ]
    (graph,) = draw_model(saved(tmp_path / "m.onnx", initializer=weights), {}).graphs
    told = list(graph["weights"].values())
    assert len(told) == 99
    assert max(map(len, told)) <= 257  # with an ellipsis
    assert told[-1] == "…"
    assert 0 < sum(one != "…" for one in told) < 60


def test_of_a_very_long_list_the_first_numbers_are_read() -> None:
    """The rest of millions of packed numbers is not read, nor that of a tensor's sizes."""
    read = 0

    class Counting(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal read
            found = super().read(size)
            read += len(found)
            return found

    def packed(field: int, count: int) -> bytes:
        length = b""
        left = count
        while left > 127:
            length += bytes([left & 127 | 128])
            left >>= 7
        return bytes([field << 3 | 2]) + length + bytes([left]) + b"\x05" * count

    content = b"\x0a\x01a" + packed(8, 5_000_000)
    found = read_attribute(FileSlice(Counting(content), 0, len(content)))
    assert found.text == f"[{', '.join(['5'] * 16)}, …]"
    content = packed(1, 5_000_000)
    _, described = describe_tensor(FileSlice(Counting(content), 0, len(content)))
    assert described.endswith("5, …]")
    assert read < 1_000_000


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(at=st.integers(0, 5000), changed=st.binary(max_size=12))
def test_damaged_files_are_refused_or_drawn(
    at: int, changed: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any bytes are drawn or raise ValueError."""
    path = tmp_path_factory.mktemp("damaged") / "m.onnx"
    whole = (MODELS / "digits/1/model.onnx").read_bytes()
    path.write_bytes(whole[:at] + changed + whole[at + len(changed) :])
    with suppress(ValueError, RecursionError):
        assert draw_model(path, {}).graphs
