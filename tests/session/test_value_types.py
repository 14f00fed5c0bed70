"""The types of all values, as ONNX Runtime infers them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from cohort.session import infer_types, value_types
from cohort.tensors import DATATYPES
from tests import onnx_models
from tests.e2e.processes import MODELS

NAMES = {row.onnx: row.name for row in DATATYPES}


@pytest.mark.parametrize("name", ["digits/1", "digits/2"])
def test_it_agrees_with_onnx(name: str) -> None:
    """It agrees on every value that `onnx` has a shape for."""
    path = MODELS / name / "model.onnx"
    found = infer_types(path)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path)).graph.value_info
    assert len(inferred) > 5
    for value in inferred:
        tensor = value.type.tensor_type
        sizes = [one.dim_param or one.dim_value for one in tensor.shape.dim]
        shape = tuple(None if str(one).startswith("unk_") else one for one in sizes)
        assert found[value.name] == (NAMES[tensor.elem_type], shape or None)


def test_weights_in_other_files_are_found(tmp_path: Path) -> None:
    """The weights are next to the model."""
    path = tmp_path / "model.onnx"
    onnx.save(onnx_models.mlp(), path, save_as_external_data=True, size_threshold=0)
    assert len(infer_types(path)) > 1


def test_what_does_not_open_or_is_large_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no error: the model serves without types."""
    path = tmp_path / "model.onnx"
    for content in (b"", b"no model", b"\xff" * 50):
        path.write_bytes(content)
        assert infer_types(path) == {}
    onnx_models.save(onnx_models.mlp(), path)
    assert infer_types(path)
    monkeypatch.setattr(value_types, "MAX_INFERRED_BYTES", 10)
    assert infer_types(path) == {}
