"""The steps themselves, on small real models."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cohort.session import open_session
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.optimizing import OPTIMIZE_STEPS, rewriting
from cohort_prepare.optimizing.rewriting import NothingToDo, apply_step
from tests import onnx_models


@pytest.mark.parametrize("step", [name for name in OPTIMIZE_STEPS if name not in {"opset", "fuse"}])
def test_inputs_outputs_and_metadata_stay(tmp_path: Path, step: str) -> None:
    """Names, order, types, open dimensions and the model's metadata stay the same."""
    model = onnx_models.describe(_convolution(), {"classes": "[0, 1]"})
    model.producer_name, model.doc_string = "us", "of digits"
    before = onnx_models.save(model, tmp_path / "model.onnx")
    after = apply_step(step, before).model
    assert list(after.graph.input) == list(model.graph.input)
    assert list(after.graph.output) == list(model.graph.output)
    assert {one.key: one.value for one in after.metadata_props} == {"classes": "[0, 1]"}
    assert (after.producer_name, after.doc_string) == ("us", "of digits")
    if step not in {"ort-extended", "ort-all"}:  # onnx knows their operators
        onnx.checker.check_model(after)
    open_session(onnx_models.save(after, tmp_path / "after.onnx"))


def test_slimmer_graphs(tmp_path: Path) -> None:
    """What does nothing goes, and what is known beforehand is computed beforehand."""
    path = onnx_models.save(_wasteful(), tmp_path / "model.onnx")
    done = apply_step("slim", path)
    assert [node.op_type for node in done.model.graph.node] == ["Mul"]
    assert done.what == "onnxslim, 4 to 1 nodes"
    assert [node.op_type for node in apply_step("ort-basic", path).model.graph.node] == ["Mul"]


def test_levels_differ_in_what_they_fuse(tmp_path: Path) -> None:
    """`extended` has operators of ONNX Runtime; `all` is for this processor and warns of it."""
    path = onnx_models.save(_convolution(), tmp_path / "model.onnx")
    kinds = {
        level: Counter(node.domain for node in apply_step(f"ort-{level}", path).model.graph.node)
        for level in ("basic", "extended", "all")
    }
    assert kinds["basic"] == {"": 2}
    assert kinds["extended"] == {"com.microsoft": 1}
    assert "may not run on another" in apply_step("ort-all", path).warnings[0]


def test_domains_are_declared_as_used(tmp_path: Path) -> None:
    """ONNX Runtime declares seven more, which other tools then ask for."""
    path = onnx_models.save(_convolution(), tmp_path / "model.onnx")
    for step, domains in (("ort-basic", [""]), ("ort-extended", ["", "com.microsoft"])):
        assert [one.domain for one in apply_step(step, path).model.opset_import] == domains


def test_float16_halves_the_file_and_cuts_what_is_too_large(tmp_path: Path) -> None:
    """Inputs and outputs stay float32; values beyond 65504 are counted."""
    path = onnx_models.save(onnx_models.mlp(features=64, hidden=64), tmp_path / "model.onnx")
    done = apply_step("fp16", path)
    assert done.model.ByteSize() < path.stat().st_size * 0.6
    assert not done.warnings
    session = open_session(onnx_models.save(done.model, tmp_path / "half.onnx"))
    assert [one.datatype for one in (*session.inputs, *session.outputs)] == ["FP32", "FP32"]
    large = onnx_models.save(onnx_models.times(1e6), tmp_path / "large.onnx")
    assert "1 weight values were cut to 65504" in apply_step("fp16", large).warnings[0]


def test_bfloat16_weights_run_here(tmp_path: Path) -> None:
    """The file halves and outputs stay close; an older opset is refused with the option to use."""
    model = onnx_models.mlp(features=64, hidden=64)
    path = onnx_models.save(model, tmp_path / "model.onnx")
    done = apply_step("bf16", path)
    assert done.model.ByteSize() < path.stat().st_size * 0.6
    x = np.eye(64, dtype=np.float32)
    (expected,) = open_session(path).run({"x": x})
    (got,) = open_session(onnx_models.save(done.model, tmp_path / "brain.onnx")).run({"x": x})
    assert np.allclose(got, expected, atol=0.02)
    model.opset_import[0].version = 12
    with pytest.raises(Rejected, match="--opset"):
        apply_step("bf16", onnx_models.save(model, tmp_path / "old.onnx"))


def test_patterns_of_transformers_are_fused(tmp_path: Path) -> None:
    """Written-out layer normalization becomes one node; a model without patterns is reported."""
    path = onnx_models.save(_layer_normalization(), tmp_path / "model.onnx")
    done = apply_step("fuse", path)
    assert [node.op_type for node in done.model.graph.node] == ["LayerNormalization"]
    assert done.what == "fused 1 LayerNormalization"
    plain = onnx_models.save(onnx_models.mlp(), tmp_path / "plain.onnx")
    with pytest.raises(NothingToDo, match="no pattern of bert"):
        apply_step("fuse", plain)


@pytest.mark.parametrize("opset", [17, 23])
def test_opsets_are_converted_up_and_down(
    tmp_path: Path, opset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same outputs, an IR version that fits the opset; large weights never pass through."""
    monkeypatch.setattr(rewriting, "LARGE_WEIGHT_BYTES", 64)
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx")
    done = apply_step("opset", path, opset=opset)
    assert done.model.opset_import[0].version == opset
    assert done.model.ir_version == {17: 8, 23: 11}[opset]
    x = np.eye(4, dtype=np.float32)
    after = open_session(onnx_models.save(done.model, tmp_path / "after.onnx"))
    assert np.allclose(after.run({"x": x})[0], open_session(path).run({"x": x})[0])


def test_opsets_that_cannot_be_reached_are_said(tmp_path: Path) -> None:
    """One that no runtime takes is a wrong option; an operator that is too new is named."""
    path = onnx_models.save(_gelu(), tmp_path / "model.onnx")
    with pytest.raises(Misused, match="opset must be from 7 to 26"):
        apply_step("opset", path, opset=99)
    with pytest.raises(Rejected, match=r"(?s)opset 21 cannot be converted to 13.*Gelu"):
        apply_step("opset", path, opset=13)
    with pytest.raises(NothingToDo, match="it already has opset 21"):
        apply_step("opset", path, opset=21)


@pytest.mark.parametrize("step", ["slim", "fp16", "bf16", "ort-basic", "opset"])
def test_weights_beside_the_model_are_read(tmp_path: Path, step: str) -> None:
    """Models above 2 GB have external data; what comes out has it in memory."""
    model = _convolution()
    model.graph.node.insert(0, helper.make_node("Identity", ["x"], ["same"]))
    model.graph.node[1].input[0] = "same"
    path = onnx_models.save_with_external_data(model, tmp_path / "model.onnx")
    after = apply_step(step, path, opset=20).model
    assert not [one for one in after.graph.initializer if one.external_data]
    open_session(onnx_models.save(after, tmp_path / "elsewhere" / "model.onnx"))


def test_defaults_of_inputs_are_not_frozen(tmp_path: Path) -> None:
    """An input that callers may leave out stays one."""
    path = onnx_models.save(onnx_models.with_defaults(), tmp_path / "model.onnx")
    with pytest.raises(NothingToDo, match="has a default"):
        apply_step("slim", path)
    for step in ("ort-basic", "ort-extended"):
        after = onnx_models.save(apply_step(step, path).model, tmp_path / "after.onnx")
        assert open_session(after).optional_inputs == open_session(path).optional_inputs


def _wasteful() -> onnx.ModelProto:
    """`y` = `x` times (1 + 2), with nodes that do nothing around it."""
    nodes = [
        helper.make_node("Add", ["one", "two"], ["three"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Mul", ["same", "three"], ["product"]),
        helper.make_node("Identity", ["product"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array([value], np.float32), name)
        for name, value in (("one", 1), ("two", 2))
    ]
    return _model(nodes, ["N", 3], weights)


def _convolution() -> onnx.ModelProto:
    kernel = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return _model(nodes, ["N", 16, 8, 8], [numpy_helper.from_array(kernel, "w")])


def _gelu() -> onnx.ModelProto:
    return _model([helper.make_node("Gelu", ["x"], ["y"])], ["N", 3], [])


def _layer_normalization() -> onnx.ModelProto:
    """Return a model with layer normalization as exporters wrote it before opset 17."""
    constants = {"two": 2.0, "tiny": 1e-5}
    weights = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in constants.items()]
    weights += [
        numpy_helper.from_array(np.full(8, v, np.float32), n) for n, v in (("g", 2), ("b", 1))
    ]
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        helper.make_node("Sub", ["x", "mean"], ["off"]),
        helper.make_node("Pow", ["off", "two"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["variance"], axes=[-1]),
        helper.make_node("Add", ["variance", "tiny"], ["more"]),
        helper.make_node("Sqrt", ["more"], ["deviation"]),
        helper.make_node("Div", ["off", "deviation"], ["unit"]),
        helper.make_node("Mul", ["unit", "g"], ["scaled"]),
        helper.make_node("Add", ["scaled", "b"], ["y"]),
    ]
    return _model(nodes, ["N", "length", 8], weights, opset=13)


def _model(
    nodes: list[onnx.NodeProto],
    shape: list[int | str],
    weights: list[onnx.TensorProto],
    opset: int = 21,
) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model
