"""The classes of scores that are a tensor are named in the model's metadata."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from onnx.helper import set_model_props

from cohort.session import open_session, read_signature
from tests import onnx_models


def classifier(folder: Path, written: str) -> Path:
    """Return a model with scores of three columns whose metadata has `written`."""
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, 3])
    rows = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])
    node = helper.make_node("Identity", ["x"], ["scores"])
    graph = helper.make_graph([node], "g", [rows], [scores])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    set_model_props(model, {"cohort.classes": written})
    return onnx_models.save(model, folder / "model.onnx")


@pytest.mark.parametrize("classes", [["cat", "dog", "eel"], [3, -1, 10**12]])
def test_classes_are_those_of_the_metadata(classes: list[str] | list[int], tmp_path: Path) -> None:
    """A session has them, and so does a signature that is read without opening the model."""
    path = classifier(tmp_path, json.dumps({"scores": classes}))
    signature = read_signature(path)
    assert signature is not None
    assert signature.outputs[0].classes == tuple(classes)
    assert open_session(path).outputs == tuple(signature.outputs)


@pytest.mark.parametrize(
    "written",
    [
        '{"scores": ["cat", "dog"]}',
        '{"other": ["cat", "dog", "eel"]}',
        '{"scores": ["cat", 2, "eel"]}',
        '{"scores": [true, false, true]}',
        '{"scores": [1.5, 2, 3]}',
        '{"scores": "cat"}',
        '["cat", "dog", "eel"]',
        '{"scores": [',
        "[" * 100_000,
        "9" * 10_000,
        "",
    ],
    ids=lambda text: text[:30],
)
def test_what_names_no_class_for_each_column_is_passed_over(written: str, tmp_path: Path) -> None:
    """The model opens with any metadata."""
    path = classifier(tmp_path, written)
    signature = read_signature(path)
    assert signature is not None
    assert not signature.outputs[0].classes
    assert not open_session(path).outputs[0].classes
