"""The tensors of a sequence that a model returns become separate outputs."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from cohort.session import Provider, open_session
from cohort.session.sequence_parts import MAX_PARTS
from cohort.session.signatures import read_signature
from cohort.tensors import Array
from tests import onnx_models

ON_CPU = (Provider("cpu"),)
X = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    return onnx_models.save(model, folder / "1" / "model.onnx")


def in_sequence(model: onnx.ModelProto) -> list[Array]:
    """Return ONNX Runtime's outputs of the unchanged model."""
    found: list[Array] = ort.InferenceSession(model.SerializeToString()).run(["scores"], {"x": X})[
        0
    ]
    return found


@pytest.mark.parametrize("targets", [1, 2, 30])
def test_each_tensor_is_an_output(targets: int, tmp_path: Path) -> None:
    """They have the numbers of the sequence, and its place among the outputs; rows are proven."""
    model = onnx_models.several_targets(targets)
    session = open_session(saved(model, tmp_path), chain=ON_CPU)
    names = [f"scores_{number}" for number in range(targets)]
    assert [one.name for one in session.outputs] == ["y", *names]
    assert {one.datatype for one in session.outputs} == {"FP32"}
    assert [one.part_of for one in session.outputs] == ["", *["scores"] * targets]
    _, *found = session.run({"x": X})
    for one, expected in zip(found, in_sequence(model), strict=True):
        np.testing.assert_array_equal(one, expected)
    assert session.rows.independent, session.rows


def test_the_file_alone_tells_the_same(tmp_path: Path) -> None:
    """What is known of a file that is not opened is what is served of it."""
    path = saved(onnx_models.several_targets(), tmp_path)
    session, signature = open_session(path, chain=ON_CPU), read_signature(path)
    assert signature is not None
    told = [replace(one, shape=None) if one.part_of else one for one in session.outputs]
    assert list(signature.outputs) == told
    assert not session.signature.misfit(signature, "version 1")


def test_a_sequence_that_nodes_need_stays_for_them(tmp_path: Path) -> None:
    """A sequence that other nodes use remains, and its tensors are outputs as well."""
    model = onnx_models.several_targets()
    model.graph.node.append(helper.make_node("SequenceLength", ["scores"], ["length"]))
    model.graph.output.append(helper.make_tensor_value_info("length", TensorProto.INT64, []))
    session = open_session(saved(model, tmp_path), chain=ON_CPU)
    assert [one.name for one in session.outputs] == ["y", "scores_0", "scores_1", "length"]
    assert session.run({"x": X})[3] == 2


@pytest.mark.parametrize("taken", ["output", "inside", "weight", "too many"])
def test_a_sequence_whose_parts_cannot_be_named_is_left_out(taken: str, tmp_path: Path) -> None:
    """A value may have such a name, or there are more parts than are served."""
    model = onnx_models.several_targets(MAX_PARTS + 1 if taken == "too many" else 2)
    if taken in ("output", "inside"):
        model.graph.node.append(helper.make_node("Neg", ["x"], ["scores_1"]))
    if taken == "inside":
        model.graph.node.append(helper.make_node("Neg", ["scores_1"], ["z"]))
    if taken == "weight":
        weight = onnx.numpy_helper.from_array(np.ones(3, np.float32), "scores_1")
        model.graph.initializer.append(weight)
        model.graph.node.append(helper.make_node("Mul", ["x", "scores_1"], ["z"]))
    if taken != "too many":
        shown = "scores_1" if taken == "output" else "z"
        model.graph.output.append(helper.make_tensor_value_info(shown, TensorProto.FLOAT, ["N", 3]))
    path = saved(model, tmp_path)
    session, signature = open_session(path, chain=ON_CPU), read_signature(path)
    assert signature is not None
    for outputs in (session.outputs, signature.outputs):
        assert "scores" in [one.name for one in outputs if not one.transportable]


def test_a_multi_output_classifier_gives_its_probabilities(tmp_path: Path) -> None:
    """The model is skl2onnx's default export."""
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression
    from sklearn.multioutput import MultiOutputClassifier

    rows = np.random.default_rng(1).standard_normal((60, 4)).astype(np.float32)
    labels = np.stack([rows[:, 0] > 0, (rows[:, 1] > 0) + (rows[:, 2] > 1)], 1).astype(int)
    source = MultiOutputClassifier(LogisticRegression()).fit(rows, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it writes no ZipMap
        model = to_onnx(source, rows[:1])
    session = open_session(saved(model, tmp_path), chain=ON_CPU)
    _, *found = session.run({session.inputs[0].name: rows})
    for one, expected in zip(found, source.predict_proba(rows), strict=True):
        np.testing.assert_allclose(one.astype(np.float32), expected, atol=1e-6)
