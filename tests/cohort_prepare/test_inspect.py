"""`cohort inspect`: what is in a model, and what becomes of it here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cohort.cli.options import MISUSED, OK
from cohort.inspection.drawing import MIN_FOLDED, find_blocks
from cohort_prepare.overview.costs import NO_RULE, count_flops
from cohort_prepare.overview.parts import Uncounted
from cohort_prepare.overview.shapes import Lengths, with_lengths
from cohort_prepare.steps import StepDifference, StepRecord, add_step
from tests import onnx_models
from tests.cli.test_cli import run
from tests.e2e.processes import MODELS


def inspected(path: Path, *more: str, code: int = OK, **environment: str) -> Any:
    """The JSON object that the command prints."""
    done = run("inspect", str(path), "--json", *more, **environment)
    assert done.exit_code == code, done.stderr
    return json.loads(done.stdout)


def model_of(
    *nodes: onnx.NodeProto,
    x: list[int | str],
    weights: dict[str, tuple[int, ...]] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """FP32 `x` to `y` of any shape, with weights of zeros."""
    graph = helper.make_graph(
        list(nodes),
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.zeros(shape, np.float32), name)
            for name, shape in (weights or {}).items()
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    opsets.append(helper.make_opsetid("com.microsoft", 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def flops_of(model: onnx.ModelProto, **lengths: int) -> int:
    """The operations of a run, all of them counted."""
    batch = lengths.pop("batch", 1)
    inferred, left_open = with_lengths(model, Lengths(batch, lengths))
    assert left_open == []
    count = count_flops(inferred.graph)
    assert count.left_out() == []
    return count.total


def test_what_is_in_the_bundled_model() -> None:
    """Inputs, outputs, opsets, operators, weights, metadata and digest are those of the file."""
    found = inspected(Path("digits/1"), COHORT_MODELS=str(MODELS))
    assert (found["command"], found["good"]) == ("inspect", True)
    assert found["model"]["path"] == str(MODELS / "digits/1/model.onnx")
    assert [one["shape"] for one in found["inputs"]] == [["N", 1, 8, 8]]
    assert [one["datatype"] for one in found["outputs"]] == ["FP32"]
    used = {one["operator"]: (one["domain"], one["count"]) for one in found["operators"]}
    assert used["Conv"] == ("", 2)
    assert all(0 < one["since"] <= found["opsets"][""] for one in found["operators"])
    assert found["parameters"]["elements"] == 38_284
    assert found["parameters"]["largest"][0]["shape"] == [64, 512]
    assert found["metadata"]["dataset"] == "sklearn.datasets.load_digits"
    assert len(found["model"]["sha256"]) == 64


def test_what_a_server_does_with_it() -> None:
    """Rows were run to see that they leave each other alone; each node has a provider."""
    found = inspected(MODELS / "digits/1/model.onnx")
    assert found["serving"]["batched"]
    assert found["serving"]["checked"]
    (on_cpu,) = [one for one in found["chains"] if one["chain"] == ["cpu"]]
    assert on_cpu["nodes"] == {"cpu": len(on_cpu["assigned"])}
    assert "Conv" in {one["operator"] for one in on_cpu["assigned"]}


def test_a_language_model_is_reported_as_one() -> None:
    """It has nothing to do with rows."""
    path = MODELS / "smalltalk/1/model.onnx"
    serving = inspected(path)["serving"]
    assert (serving["language_model"], serving["batched"]) == (True, False)
    assert "In a server: a language model" in run("inspect", str(path)).stdout


def test_a_file_next_to_a_language_model_is_not_one(tmp_path: Path) -> None:
    """Only the decoder that genai_config.json names is one, whatever its inputs are."""
    for decoder, other in (("model.onnx", "embedding.onnx"), ("decoder.onnx", "model.onnx")):
        (tmp_path / "genai_config.json").write_text(
            json.dumps({"model": {"embedding": {}, "decoder": {"filename": decoder}}})
        )
        for name, expected in ((decoder, True), (other, False)):
            path = onnx_models.save(onnx_models.mlp(), tmp_path / name)
            serving = inspected(path)["serving"]
            assert (serving["language_model"], serving["batched"]) == (expected, not expected)


def test_rows_that_influence_each_other_are_told(tmp_path: Path) -> None:
    """A dynamically quantized model is not batched, and the report has the reason."""
    path = onnx_models.save(onnx_models.dynamically_quantized(), tmp_path / "model.onnx")
    serving = inspected(path)["serving"]
    assert not serving["batched"]
    assert "rows may influence each other; DynamicQuantizeLinear" in serving["reason"]
    assert serving["rows"]["verdict"] == "refuted"
    assert serving["rows"]["node_path"] == [0]
    shown = run("inspect", str(path)).stdout
    assert "  rows, from the graph: refuted\n  to batch: quantize statically" in shown


def test_rows_along_other_axes_are_told(tmp_path: Path) -> None:
    """The report lists those of a recurrent network by input and output."""
    path = onnx_models.save(onnx_models.recurrent(), tmp_path / "model.onnx")
    shown = run("inspect", str(path)).stdout
    assert "  rows, from the graph: proven\n  input 'x': rows along axis 1\n" in shown
    assert "  output 'y': rows along axis 2\n" in shown
    assert "to batch" not in shown


def test_what_cannot_be_sent_and_what_cannot_be_estimated(tmp_path: Path) -> None:
    """An output that is a sequence; a cost that depends on values; a dimension left to callers."""
    path = onnx_models.save(onnx_models.sequence_and_tensor(), tmp_path / "sequence.onnx")
    assert list(inspected(path)["serving"]["unsent"].values()) == ["seq(tensor(float))"]
    path = onnx_models.save(onnx_models.loop(), tmp_path / "loop.onnx")
    found = inspected(path)
    assert "Loop" in found["serving"]["unpredictable"]
    assert found["graph"]["subgraphs"] == 1
    assert any("the body of Loop is counted once" in note for note in found["flops"]["notes"])
    path = onnx_models.save(onnx_models.variable_length(), tmp_path / "words.onnx")
    assert inspected(path)["serving"]["open_dimensions"]


def test_operations_of_products() -> None:
    """Each multiplication with its addition counts two and each bias one, as by hand."""
    dense = model_of(
        helper.make_node("Gemm", ["x", "w", "b"], ["y"]),
        x=["N", 8],
        weights={"w": (8, 5), "b": (5,)},
    )
    assert flops_of(dense, batch=3) == 3 * (2 * 8 * 5 + 5)
    conv = model_of(
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], group=2),
        x=["N", 4, 6, 6],
        weights={"w": (8, 2, 3, 3)},
    )
    assert flops_of(conv) == 2 * (8 * 6 * 6) * (2 * 3 * 3)
    lstm = model_of(
        helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3),
        x=[7, 2, 5],
        weights={"w": (1, 12, 5), "r": (1, 12, 3)},
    )
    assert flops_of(lstm) == 2 * 7 * 2 * (12 * 5 + 12 * 3)
    attention = model_of(
        helper.make_node("MatMul", ["x", "x"], ["s"]),
        helper.make_node("Einsum", ["s", "x"], ["y"], equation="ij,jk->ik"),
        x=[4, 4],
    )
    assert flops_of(attention) == 2 * (2 * 4 * 4 * 4)


def test_operations_of_the_runtimes_own_operators() -> None:
    """ONNX itself does not know the shapes of these operators."""
    model = model_of(
        helper.make_node("FusedMatMul", ["x", "w"], ["h"], domain="com.microsoft"),
        helper.make_node("Gelu", ["h"], ["g"], domain="com.microsoft"),
        helper.make_node("MatMul", ["g", "v"], ["y"]),
        x=["N", "L", 16],
        weights={"w": (16, 16), "v": (16, 4)},
    )
    unknown = helper.make_node("Strange", ["x"], ["z"], domain="com.microsoft")
    model.graph.node.append(unknown)
    with_it, _ = with_lengths(model, Lengths(2, {"L": 5}))
    assert count_flops(with_it.graph).left_out() == [Uncounted("Strange", 1, NO_RULE)]
    model.graph.node.remove(unknown)
    products = 2 * 10 * 16 * 16 + 2 * 10 * 16 * 4
    assert flops_of(model, batch=2, L=5) == products + 8 * 10 * 16


def test_operations_of_classic_models() -> None:
    """Its first operator is one of ONNX-ML, after which ONNX alone knows no shape."""
    model = model_of(
        helper.make_node("Scaler", ["x"], ["h"], domain="ai.onnx.ml", offset=[0.0], scale=[1.0]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
        x=["N", 8],
        weights={"w": (8, 3)},
    )
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    assert flops_of(model, batch=5) == 5 * (2 * 8 + 2 * 8 * 3)


def test_operations_inside_functions_and_branches() -> None:
    """A function's body counts at each call, of two branches the more expensive one."""
    twice = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["c"],
        [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Relu", ["b"], ["c"])],
        [helper.make_opsetid("", 17)],
    )
    calls = [
        helper.make_node("Twice", ["x"], ["h"], domain="mine"),
        helper.make_node("Twice", ["h"], ["y"], domain="mine"),
    ]
    assert flops_of(model_of(*calls, x=[5], functions=[twice])) == 4 * 5

    def branch(name: str, *operators: str) -> onnx.GraphProto:
        values = ["x", *(f"{name}{place}" for place in range(len(operators)))]
        return helper.make_graph(
            [
                helper.make_node(one, [values[place]], [values[place + 1]])
                for place, one in enumerate(operators)
            ],
            name,
            [],
            [helper.make_tensor_value_info(values[-1], TensorProto.FLOAT, [5])],
        )

    chosen = model_of(
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
        helper.make_node(
            "If",
            ["c"],
            ["y"],
            then_branch=branch("then", "Relu", "Relu", "Relu"),
            else_branch=branch("else", "Relu"),
        ),
        x=[5],
    )
    assert flops_of(chosen) == 5 + 3 * 5


def test_what_is_not_counted_is_said(tmp_path: Path) -> None:
    """An open dimension by its name, until its length is given."""
    model = model_of(
        helper.make_node("MatMul", ["x", "w"], ["y"]), x=["N", "L", 4], weights={"w": (4, 4)}
    )
    path = onnx_models.save(model, tmp_path / "model.onnx")
    flops = inspected(path)["flops"]
    assert (flops["total"], flops["open"]) == (0, ["L"])
    assert [one["operator"] for one in flops["uncounted"]] == ["MatMul"]
    assert inspected(path, "--dim", "L=6", "--batch", "2")["flops"]["total"] == 2 * 12 * 4 * 4
    assert flops_of(model, **{"x.1": 6}) == 2 * 6 * 4 * 4


@pytest.mark.parametrize("size", [2, 64], ids=["small weights", "large weights"])
def test_external_data_that_is_not_there_is_wrong_use(tmp_path: Path, size: int) -> None:
    """A truncated file or an impossible place exits with 2 and the server's sentence."""
    made = onnx_models.slow(nodes=1, size=size)
    path = onnx_models.save_with_external_data(made, tmp_path / "model.onnx")
    model = onnx.load(path, load_external_data=False)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:-4])
    assert "external data ends after" in inspected(path, code=MISUSED)["error"]
    for weight in model.graph.initializer:
        for one in weight.external_data:
            if one.key == "offset":
                one.value = "-4"
    path.write_bytes(model.SerializeToString())
    assert "has the offset -4" in inspected(path, code=MISUSED)["error"]


def test_file_that_is_absent_is_said(tmp_path: Path) -> None:
    """The error also names the other possible form."""
    said = inspected(tmp_path / "absent.onnx", code=MISUSED)["error"]
    assert "is neither an ONNX file nor a NAME or NAME/VERSION" in said


def test_weights_outside_and_sparse_are_told_apart(tmp_path: Path) -> None:
    """The report has their places, and the bytes of each."""
    path = onnx_models.save_with_external_data(onnx_models.slow(nodes=2), tmp_path / "model.onnx")
    found = inspected(path)["parameters"]
    assert sum(found["external"].values()) > found["bytes"] // 2
    assert {one["kept"] for one in found["largest"]} >= {"outside"}
    model = model_of(helper.make_node("MatMul", ["x", "s"], ["y"]), x=["N", 100])
    values = helper.make_tensor("s", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [2, 2], [0, 0, 3, 1])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [100, 4]))
    path = onnx_models.save(model, tmp_path / "sparse.onnx")
    assert inspected(path)["parameters"]["sparse"] == 1


def test_what_was_done_to_it_is_its_history(tmp_path: Path) -> None:
    """It lists the steps that Cohort's commands wrote, in order, apart from other metadata."""
    model = onnx_models.mlp()
    add_step(model, StepRecord("convert", "scikit-learn MLP to opset 17"))
    add_step(model, StepRecord("quantize", "dynamic", difference=StepDifference(0.25)))
    path = onnx_models.save(model, tmp_path / "model.onnx")
    found = inspected(path)
    assert [one["step"] for one in found["history"]] == ["convert", "quantize"]
    assert not [key for key in found["metadata"] if key.startswith("cohort.")]
    shown = run("inspect", str(path)).stdout
    assert "quantize: dynamic; outputs differ by up to 0.25" in shown


@pytest.mark.parametrize("content", [None, b"", b"no model", b"\x08\x0a" + b"\xff" * 40])
def test_what_is_no_model_is_wrong_use(tmp_path: Path, content: bytes | None) -> None:
    """The error is one sentence, in JSON as well, and no page is written."""
    path, page = tmp_path / "model.onnx", tmp_path / "page.html"
    if content is not None:
        path.write_bytes(content)
    found = inspected(path, "--html", str(page), code=MISUSED)
    assert "model.onnx" in found["error"]
    assert not found["good"]
    assert not page.exists()


def test_a_wrong_length_is_wrong_use() -> None:
    """The error has an example of a right one."""
    done = run("inspect", str(MODELS / "digits"), "--dim", "sequence")
    assert done.exit_code == MISUSED
    assert "sequence=128" in done.stderr


def test_a_model_that_takes_too_much_still_has_a_structure(tmp_path: Path) -> None:
    """The model is not opened, and its file is reported all the same."""
    path = onnx_models.save(onnx_models.endless(), tmp_path / "model.onnx")
    found = inspected(path, COHORT_INSPECTION_SECONDS="3")
    assert "COHORT_INSPECTION_SECONDS" in found["serving"]["problem"]
    assert found["graph"]["nodes"] > 0


def test_names_of_megabytes_are_cut(tmp_path: Path) -> None:
    """They are cut in JSON, in the table and in the page."""
    long = "n" * (2 << 20)
    model = model_of(helper.make_node("Relu", ["x"], ["y"], name=long), x=["N", 3])
    model.graph.name = model.producer_name = long
    onnx_models.describe(model, {long: long})
    path = onnx_models.save(model, tmp_path / "model.onnx")
    done = run("inspect", str(path), "--html", str(tmp_path / "page.html"))
    assert done.exit_code == OK
    assert len(done.stdout) < 20_000
    assert (tmp_path / "page.html").stat().st_size < 60_000


def test_layers_are_found_by_what_repeats() -> None:
    """Wherever they begin, but not what repeats in a few nodes."""
    layer = [*("MatMul", "Add", "Relu", "Softmax") * 2, "LayerNormalization"]
    operators = ["Gather", "Add", *layer * 12, "Gemm"]
    (block,) = find_blocks(operators)
    start, length, times = block
    assert (length, times) == (len(layer), 12)
    assert start <= 2
    irregular = [f"Op{place}" for place in range(200)]
    assert find_blocks(irregular) == []
    few = [*irregular, *["Same"] * (MIN_FOLDED - 4)]
    assert find_blocks(few) == []


def test_a_name_with_a_typing_error_is_refused_with_the_model_that_was_meant() -> None:
    """Models of the folder are suggested."""
    done = run("inspect", "irsi/1", COHORT_MODELS=str(MODELS))
    assert (done.exit_code, "did you mean 'iris'?" in done.stderr) == (MISUSED, True)
