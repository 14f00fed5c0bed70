"""The bundled models' own metadata, measured on rows that they were not trained on."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from cohort.inspection import bundled
from cohort.session.digests import hash_file
from models.drawn import drawn_digits
from tests.bundled import digits_test_split, iris_test_split, metadata, model_path

BUNDLED = [("iris", 1), ("digits", 1), ("digits", 2)]
SPLITS = {"iris": iris_test_split, "digits": digits_test_split}
INPUTS = {
    "iris": [("features", "FLOAT", ["N", 4])],
    "digits": [("image", "FLOAT", ["N", 1, 8, 8])],
}
OUTPUTS = {
    "iris": [("label", "INT64", ["N"]), ("probabilities", "FLOAT", ["N", 3])],
    "digits": [("probabilities", "FLOAT", ["N", 10])],
}
CLASSES = {
    "iris": ["setosa", "versicolor", "virginica"],
    "digits": ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
}
LARGEST = {("iris", 1): 40_000, ("digits", 1): 200_000, ("digits", 2): 60_000}

each_model = pytest.mark.parametrize(("name", "version"), BUNDLED)


def test_bundled_models_are_not_inspected() -> None:
    """Their digests are known; after a rebuild, `cohort.inspection.bundled` needs the new ones."""
    files = [model_path(name, version) for name, version in BUNDLED]
    assert {hash_file(file) for file in files} == bundled.BUNDLED


@each_model
def test_inputs_and_outputs_are_as_documented(name: str, version: int) -> None:
    """Names, datatypes and shapes are the documented ones, and axis 0 is called N everywhere."""
    graph = onnx.load(model_path(name, version)).graph

    assert [signature(value) for value in graph.input] == INPUTS[name]
    assert [signature(value) for value in graph.output] == OUTPUTS[name]


@each_model
def test_runtime_can_open_them(name: str, version: int) -> None:
    """The file is valid ONNX of an opset and IR that the pinned runtime takes."""
    model = onnx.load(model_path(name, version))

    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version <= 13
    assert max(opset.version for opset in model.opset_import) <= 26


@each_model
def test_file_says_what_it_is(name: str, version: int) -> None:
    """Producer, doc string, class names, split and libraries stand inside the file."""
    model = onnx.load(model_path(name, version))
    facts = metadata(name, version)

    assert model.producer_name == "cohort"
    assert model.doc_string
    assert json.loads(facts["classes"]) == CLASSES[name]
    assert f"test_size={facts['test_size']}" in facts["split"]
    assert f"random_state={facts['split_seed']}" in facts["split"]
    assert "scikit-learn" in json.loads(facts["libraries"])


@each_model
def test_file_is_small_and_whole(name: str, version: int) -> None:
    """Everything is in one small file, without external weights."""
    path = model_path(name, version)

    assert path.stat().st_size <= LARGEST[name, version]
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]


@each_model
def test_nothing_tells_where_it_was_made(name: str, version: int) -> None:
    """Nodes carry no stack traces, so that no path of the training machine is published."""
    graph = onnx.load(model_path(name, version)).graph

    assert not any(node.metadata_props or node.doc_string for node in graph.node)


@each_model
def test_accuracy_is_the_one_claimed(name: str, version: int) -> None:
    """The accuracy in the metadata is exactly what the held-out rows give now."""
    facts = metadata(name, version)
    _, labels = SPLITS[name]()

    assert len(labels) == int(facts["test_rows"])
    assert accuracy(name, version) == float(facts["test_accuracy"])


def test_versions_of_digits_share_one_split() -> None:
    """Both versions were measured on the same rows, so their accuracies compare."""
    first, second = metadata("digits", 1), metadata("digits", 2)

    assert all(first[key] == second[key] for key in ("split", "test_rows", "preprocessing"))


def test_digits_are_read_well() -> None:
    """The FP32 network reads at least 99 % of digits it never saw."""
    assert accuracy("digits", 1) >= 0.99


@pytest.mark.parametrize("version", [1, 2])
def test_ways_of_writing_that_the_data_set_lacks_are_read(version: int) -> None:
    """Other hands drew sevens without a bar, open and closed fours, and ones with a foot."""
    pictures, labels = drawn_digits(440, seed=2026)
    again, _ = drawn_digits(440, seed=2026)

    assert pictures.shape == (440, 1, 8, 8)
    assert (pictures == again).all()
    assert pictures.min() == 0
    assert 0.9 < pictures.max() <= 1
    given = answers(opened("digits", version), pictures)["probabilities"].argmax(axis=1)
    assert (given == labels).mean() >= 0.98


def test_int8_costs_at_most_a_point() -> None:
    """Quantizing moves the accuracy by no more than 0.01."""
    assert accuracy("digits", 2) == pytest.approx(accuracy("digits", 1), abs=0.01)


def test_second_version_computes_in_int8() -> None:
    """Every convolution and dense layer of version 2 has INT8 weights with static scales."""
    graph = onnx.load(model_path("digits", 2)).graph
    made_by = {output: node for node in graph.node for output in node.output}
    stored = {weight.name: weight.data_type for weight in graph.initializer}
    layers = [node for node in graph.node if node.op_type in {"Conv", "Gemm"}]

    assert len(layers) == 4
    for layer in layers:
        activation, weight = (made_by[name] for name in layer.input[:2])
        assert activation.op_type == weight.op_type == "DequantizeLinear"
        assert stored[weight.input[0]] == onnx.TensorProto.INT8
        assert activation.input[1] in stored


@each_model
def test_rows_keep_to_themselves(name: str, version: int) -> None:
    """A row run alone gets the answer it gets among others."""
    session = opened(name, version)
    features, _ = SPLITS[name]()
    together = answers(session, features)
    alone = [answers(session, features[row : row + 1]) for row in range(len(features))]

    for output, values in together.items():
        np.testing.assert_allclose(
            np.concatenate([answer[output] for answer in alone]), values, rtol=0, atol=1e-5
        )


def signature(value: onnx.ValueInfoProto) -> tuple[str, str, list[str | int]]:
    tensor = value.type.tensor_type
    shape = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
    return value.name, onnx.TensorProto.DataType.Name(tensor.elem_type), shape


def accuracy(name: str, version: int) -> float:
    features, labels = SPLITS[name]()
    given = answers(opened(name, version), features)
    predicted = given["label"] if "label" in given else given["probabilities"].argmax(axis=1)
    return int((predicted == labels).sum()) / len(labels)


def opened(name: str, version: int) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        model_path(name, version), providers=["CPUExecutionProvider"]
    )


def answers(
    session: onnxruntime.InferenceSession, features: npt.NDArray[np.float32]
) -> dict[str, npt.NDArray[Any]]:
    names = [output.name for output in session.get_outputs()]
    inputs = {session.get_inputs()[0].name: features}
    return dict(zip(names, session.run(names, inputs), strict=True))
