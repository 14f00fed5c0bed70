"""What a published version promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from app.errors import LoadFailed
from app.repository import Manifest, read_manifest, verify_digests
from app.repository.manifest import (
    Change,
    Example,
    Measured,
    Source,
    Tolerance,
    compare,
    decode_tensor,
    digest,
    dump_manifest,
    encode_tensor,
)
from app.tensors import DATATYPES, Array, TensorSpec


def write(folder: Path, content: object) -> None:
    (folder / "manifest.json").write_text(json.dumps(content))


def test_version_without_a_manifest_has_none(tmp_path: Path) -> None:
    """A model copied into place by hand promises nothing."""
    assert read_manifest(tmp_path) is None


def test_manifest_that_is_written_is_read_back(tmp_path: Path) -> None:
    """Every key survives, arrays included."""
    example = Example(
        inputs={"x": np.array([[1.5, np.nan]], dtype=np.float32)},
        outputs={"label": np.array([3]), "text": np.array(["é", ""], dtype=np.object_)},
        tolerance=Tolerance(1e-3, 0),
    )
    manifest = Manifest(
        format=1,
        files={"model.onnx": "0" * 64},
        source=Source("pytorch", "2.13.0"),
        opset=20,
        difference=Measured(1e-7, 2e-6),
        size_bytes=Change(10, 5),
        latency_ms=Change(2.5, 1),
        examples=(example,),
    )
    (tmp_path / "manifest.json").write_bytes(dump_manifest(manifest))
    read = read_manifest(tmp_path)
    assert read is not None
    for key in ("format", "files", "source", "opset", "difference", "size_bytes", "latency_ms"):
        assert getattr(read, key) == getattr(manifest, key)
    (got,) = read.examples
    np.testing.assert_array_equal(got.inputs["x"], example.inputs["x"])
    assert got.outputs["label"].dtype == np.int64
    assert got.outputs["text"].tolist() == ["é", ""]
    assert got.tolerance == example.tolerance


def test_keys_of_later_editions_are_passed_over(tmp_path: Path) -> None:
    """A newer `cohort publish` may write down more within the same format."""
    write(tmp_path, {"format": 1, "signature": "…"})
    assert read_manifest(tmp_path) is not None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"format": 2}, "format is newer"),
        ({}, "format"),
        ([], "manifest.json"),
        ({"format": 1, "files": {"model.onnx": "abc"}}, "files.model.onnx"),
        ({"format": 1, "examples": [{"inputs": {}}]}, "examples.0.outputs"),
        ({"format": 1, "examples": [{"inputs": [], "outputs": {}}]}, "examples.0.inputs"),
        (
            {"format": 1, "examples": [{"inputs": {"x": {"datatype": "FP3"}}, "outputs": {}}]},
            "'x': shape",
        ),
        (
            {
                "format": 1,
                "examples": [{"inputs": {}, "outputs": {}, "tolerance": {"absolute": -1}}],
            },
            "tolerance.absolute",
        ),
    ],
)
def test_manifest_that_cannot_be_understood_fails_the_load(
    tmp_path: Path, content: object, says: str
) -> None:
    """With the place in the file, so that it can be mended or published anew."""
    write(tmp_path, content)
    with pytest.raises(LoadFailed, match=r"manifest\.json") as caught:
        read_manifest(tmp_path)
    assert says in str(caught.value)


@pytest.mark.parametrize("junk", [b"", b"\x00\xff", b"{", b"[" * 100_000, b'{"format": NaN}'])
def test_junk_fails_the_load(tmp_path: Path, junk: bytes) -> None:
    """And raises nothing but LoadFailed."""
    (tmp_path / "manifest.json").write_bytes(junk)
    with pytest.raises(LoadFailed):
        read_manifest(tmp_path)


def test_folder_or_loop_in_its_place_fails_the_load(tmp_path: Path) -> None:
    """What is there and cannot be read is not the same as nothing."""
    path = tmp_path / "manifest.json"
    path.mkdir()
    with pytest.raises(LoadFailed):
        read_manifest(tmp_path)
    path.rmdir()
    path.symlink_to(path)
    with pytest.raises(LoadFailed):
        read_manifest(tmp_path)


numbers = st.sampled_from(
    [row.dtype for row in DATATYPES if row.numpy_native and row.kind != "text"]
).flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
texts = hnp.arrays(
    np.object_,
    hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
    elements=st.text(st.characters(codec="utf-8")),
    fill=st.nothing(),
)


@given(numbers | texts)
def test_arrays_are_kept_exactly(array: Array) -> None:
    """Datatype, shape and every bit, NaN's included."""
    read = decode_tensor(json.loads(json.dumps(encode_tensor(array))))
    assert read.dtype == array.dtype
    assert read.shape == array.shape
    if array.dtype == np.object_:
        assert read.tolist() == array.tolist()
    else:
        assert read.tobytes() == array.tobytes()


def test_brain_floats_are_kept() -> None:
    """The one datatype that numpy does not know by itself."""
    array = np.array([1.5, -2], dtype=ml_dtypes.bfloat16)
    assert encode_tensor(array)["datatype"] == "BF16"
    np.testing.assert_array_equal(decode_tensor(encode_tensor(array)), array)


def test_arrays_of_the_other_byte_order_and_layout_are_kept() -> None:
    """What is written is little-endian and in C order, whatever the array was."""
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert decode_tensor(encode_tensor(array.astype(">i4").T)).tolist() == array.T.tolist()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shape": [3]}, "2 values"),
        ({"shape": [-2]}, "shape"),
        ({"datatype": "FP31"}, "no datatype"),
        ({"base64": "!"}, "base64"),
        ({"base64": "AAAA"}, "3 bytes"),
        ({"datatype": "BYTES", "base64": "/////w=="}, "end early"),
    ],
)
def test_tensor_that_is_broken_says_how(change: dict[str, Any], says: str) -> None:
    """A tensor written by hand or cut off is refused with a reason."""
    written = encode_tensor(np.zeros(2, dtype=np.float32)) | change
    with pytest.raises(ValueError, match=says):
        decode_tensor(written)


def test_digests_of_untouched_files_are_right(tmp_path: Path) -> None:
    """What was published is what is here, in folders below, too."""
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights.bin").write_bytes(b"1234")
    files = {name: digest(tmp_path / name) for name in ("model.onnx", "data/weights.bin")}
    verify_digests(tmp_path, Manifest(format=1, files=files))
    verify_digests(tmp_path, Manifest(format=1))


def test_changed_or_missing_file_is_named(tmp_path: Path) -> None:
    """One flipped bit is enough."""
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    manifest = Manifest(format=1, files={"model.onnx": digest(tmp_path / "model.onnx")})
    (tmp_path / "model.onnx").write_bytes(b"onny")
    with pytest.raises(LoadFailed, match=r"'model\.onnx' is not the file that was published"):
        verify_digests(tmp_path, manifest)
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(LoadFailed, match=r"'model\.onnx' was published .* is missing"):
        verify_digests(tmp_path, manifest)


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/passwd", "a/../../b", "", "a\\b", "a\0b"])
def test_digests_reach_no_file_elsewhere(tmp_path: Path, name: str) -> None:
    """A manifest may come with a model from anywhere."""
    with pytest.raises(LoadFailed, match="not a file inside"):
        verify_digests(tmp_path, Manifest(format=1, files={name: "0" * 64}))


def test_digests_without_the_model_promise_nothing(tmp_path: Path) -> None:
    """A manifest that leaves out the one file that matters is a mistake."""
    (tmp_path / "labels.txt").write_text("a")
    manifest = Manifest(format=1, files={"labels.txt": digest(tmp_path / "labels.txt")})
    with pytest.raises(LoadFailed, match=r"none for model\.onnx"):
        verify_digests(tmp_path, manifest)


def floats(*values: float) -> dict[str, Array]:
    return {"y": np.array(values, dtype=np.float32)}


@pytest.mark.parametrize(
    ("expected", "got", "within"),
    [
        (floats(1, 2), floats(1, 2), True),
        (floats(1, 100), floats(1, 100.005), True),
        (floats(0, 1), floats(1e-6, 1), True),
        (floats(0, 1), floats(1e-3, 1), False),
        (floats(np.nan, np.inf), floats(np.nan, np.inf), True),
        (floats(np.nan), floats(0), False),
        (floats(np.inf), floats(-np.inf), False),
        (floats(3e38), floats(-3e38), False),
        (floats(1), floats(1, 1), False),
        (floats(), floats(), True),
        (floats(1), {"y": np.array([1.0])}, False),
        (floats(1), {"z": np.array([1.0])}, False),
        ({"y": np.array([1000])}, {"y": np.array([1000])}, True),
        ({"y": np.array([100_000])}, {"y": np.array([100_001])}, False),
        ({"y": np.array(["a"], np.object_)}, {"y": np.array(["b"], np.object_)}, False),
        ({"y": np.array(True)}, {"y": np.array(True)}, True),
        ({"y": np.ones(1, np.float16)}, {"y": np.ones(1, np.float16)}, True),
    ],
)
def test_results_are_compared_within_tolerance(
    expected: dict[str, Array], got: dict[str, Array], within: bool
) -> None:
    """Floats nearly, all else exactly; shapes and datatypes always."""
    difference = compare(expected, got, Tolerance(1e-5, 1e-4))
    assert difference.within is within
    assert str(difference)


def test_difference_says_where_and_how_far() -> None:
    """The sentence is for whoever has to find out why."""
    difference = compare(floats(1, 2), floats(1, 2.5), Tolerance(1e-5, 0))
    assert difference.max_absolute == 0.5
    assert difference.max_relative == 0.25
    assert str(difference).startswith("output 'y' is off by 0.5 at [1], in 1 of 2 values")


def test_example_fits_its_model_or_says_so() -> None:
    """An example goes by the specs of the model that is here."""
    example = Example(inputs=floats(1, 2), outputs={})
    spec = TensorSpec("y", "FP32", ("N",))
    np.testing.assert_array_equal(example.input_arrays([spec])["y"], [1, 2])
    with pytest.raises(LoadFailed, match="does not fit the model"):
        example.input_arrays([TensorSpec("y", "FP64", ("N",))])
    with pytest.raises(LoadFailed, match="does not fit the model"):
        example.input_arrays([spec, TensorSpec("x", "FP32", ("N",))])


def test_example_compares_the_outputs_it_has() -> None:
    """A model may have grown more outputs than an example tells of."""
    example = Example(inputs={}, outputs=floats(1))
    assert example.compare(floats(1) | {"more": np.zeros(3)}).within
    assert not example.compare({"more": np.zeros(3)}).within
