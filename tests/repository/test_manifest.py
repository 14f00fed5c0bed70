"""The promises of a published version."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import TypeAdapter

from cohort.codec import to_bytes
from cohort.comparing import Tolerance
from cohort.errors import LoadFailed
from cohort.repository import (
    Distribution,
    Manifest,
    describe_features,
    read_manifest,
    verify_digests,
)
from cohort.repository.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_MANIFEST_VALUES,
    Change,
    Example,
    PublishedRows,
    SourceDifference,
    SourceFramework,
    dump_manifest,
)
from cohort.row_independence import OutputRows, RowKind, RowVerdict
from cohort.session import Digests
from cohort.session.digests import hash_file
from cohort.tensors import DATATYPES, Array, Datatype, TensorSpec


def write(folder: Path, content: object) -> None:
    (folder / "manifest.json").write_text(json.dumps(content))


def test_manifest_that_is_huge_is_not_parsed(tmp_path: Path) -> None:
    """It would take several times its size of memory."""
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(LoadFailed, match="more than 64 MiB"):
        read_manifest(tmp_path)


def test_manifest_is_read_as_far_as_it_is_long(tmp_path: Path) -> None:
    """Reading further would never end if the linked file has no end, such as /proc/kmsg."""
    (tmp_path / "manifest.json").symlink_to("/proc/self/status")
    with pytest.raises(LoadFailed, match="EOF"):
        read_manifest(tmp_path)


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
        source=SourceFramework("pytorch", "2.13.0"),
        opset=20,
        difference=SourceDifference(1e-7, 2e-6),
        size_bytes=Change(10, 5),
        rows=PublishedRows("shared", input_axes={"x": 1, "rate": None}),
        latency_ms={1: Change(2.5, 1)},
        examples=(example,),
    )
    (tmp_path / "manifest.json").write_bytes(dump_manifest(manifest))
    read = read_manifest(tmp_path)
    assert read is not None
    keys = ("format", "files", "source", "opset", "difference", "size_bytes", "latency_ms", "rows")
    for key in keys:
        assert getattr(read, key) == getattr(manifest, key)
    (got,) = read.examples
    np.testing.assert_array_equal(got.inputs["x"], example.inputs["x"])
    assert got.outputs["label"].dtype == np.int64
    assert got.outputs["text"].tolist() == ["é", ""]
    assert got.tolerance == example.tolerance


def test_what_is_written_of_rows_is_what_differs_from_axis_0() -> None:
    """Without a proof the reason is written."""
    shared = RowVerdict(
        RowKind.SHARED,
        inputs={"x": 0, "h": 1, "rate": None},
        outputs={"y": OutputRows(0), "h": OutputRows(1), "seen": None},
    )
    assert PublishedRows.of(shared) == PublishedRows(
        "shared", "", {"h": 1, "rate": None}, {"h": 1, "seen": None}
    )
    assert PublishedRows.of(shared).independent
    refuted = RowVerdict(RowKind.REFUTED, "Sum 'y'", "it adds up", {"x": 1})
    reason = "rows may influence each other; Sum 'y': it adds up"
    assert PublishedRows.of(refuted) == PublishedRows("refuted", reason)
    assert not PublishedRows.of(refuted).independent


def test_manifest_without_rows_is_read(tmp_path: Path) -> None:
    """Earlier manifests do not have them; a later Cohort may have other verdicts and keys."""
    write(tmp_path, {"format": 1, "opset": 20})
    earlier = read_manifest(tmp_path)
    assert earlier is not None
    assert earlier.rows is None
    write(tmp_path, {"format": 1, "rows": {"verdict": "weighed", "weight": 3}})
    later = read_manifest(tmp_path)
    assert later is not None
    assert later.rows == PublishedRows("weighed")
    assert not later.rows.independent


def test_keys_of_later_editions_are_passed_over(tmp_path: Path) -> None:
    """A newer `cohort publish` may write down more within the same format."""
    write(tmp_path, {"format": 1, "signature": "…"})
    assert read_manifest(tmp_path) is not None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"format": 2}, "format is newer"),
        ({"format": True}, "format: must be a whole number"),
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
    """The error has the place in the file, so that it can be fixed or published again."""
    write(tmp_path, content)
    with pytest.raises(LoadFailed, match=r"manifest\.json") as caught:
        read_manifest(tmp_path)
    assert says in str(caught.value)


@pytest.mark.parametrize("junk", [b"", b"\x00\xff", b"{", b"[" * 100_000, b'{"format": NaN}'])
def test_junk_fails_the_load(tmp_path: Path, junk: bytes) -> None:
    """Only LoadFailed is raised."""
    (tmp_path / "manifest.json").write_bytes(junk)
    with pytest.raises(LoadFailed):
        read_manifest(tmp_path)


def test_manifest_of_countless_values_is_refused_unread(tmp_path: Path) -> None:
    """Parsing millions of them, known keys or not, would hold up the whole server."""
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"format": 1, "later": [0] * MAX_MANIFEST_VALUES}))
    assert read_manifest(tmp_path) is not None
    path.write_text(json.dumps({"format": 1, "later": [0] * (MAX_MANIFEST_VALUES + 2)}))
    with pytest.raises(LoadFailed, match=r"more than 200,000 values"):
        read_manifest(tmp_path)


def test_key_that_is_there_twice_fails_the_load(tmp_path: Path) -> None:
    """This holds at any depth, since another reader may take the other value."""
    digest = "0" * 64
    (tmp_path / "manifest.json").write_text(
        f'{{"format": 1, "files": {{"a": "{digest}", "a": "{digest}"}}}}'
    )
    with pytest.raises(LoadFailed, match="duplicate key 'a'"):
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


def kept(array: Array) -> Array:
    """Return the array after a round trip through a manifest."""
    example = Example(inputs={"x": array}, outputs={})
    written = json.loads(dump_manifest(Manifest(format=1, examples=(example,))))
    return TypeAdapter(Manifest).validate_json(json.dumps(written)).examples[0].inputs["x"]


@given(numbers | texts)
def test_arrays_are_kept_exactly(array: Array) -> None:
    """Datatype, shape and every bit survive, NaN's included."""
    read = kept(array)
    assert read.dtype == array.dtype
    assert read.shape == array.shape
    if array.dtype == np.object_:
        assert read.tolist() == array.tolist()
    else:
        assert read.tobytes() == array.tobytes()
    assert not read.flags.writeable


@pytest.mark.parametrize("row", DATATYPES, ids=lambda row: row.name)
def test_tensors_are_written_as_the_binary_extension_writes_them(row: Datatype) -> None:
    """Every datatype has one form: four elements of INT4 are two bytes here as on the wire."""
    array = (
        np.array(["a", "é", "", "b"], np.object_) if row.kind == "text" else np.ones(4, row.dtype)
    )
    example = Example(inputs={"x": array}, outputs={})
    written = json.loads(dump_manifest(Manifest(format=1, examples=(example,))))
    tensor = written["examples"][0]["inputs"]["x"]
    assert (tensor["datatype"], tensor["shape"]) == (row.name, [4])
    assert b64decode(tensor["base64"]) == bytes(to_bytes(array))
    assert kept(array).tolist() == array.tolist()


def test_arrays_of_the_other_byte_order_and_layout_are_kept() -> None:
    """What is written is little-endian and in C order, whatever the array was."""
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert kept(array.astype(">i4").T).tolist() == array.T.tolist()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shape": [3]}, "'x' of FP32 and shape [3] needs 12 bytes, got 8"),
        ({"shape": [-2]}, "'x': shape.0"),
        ({"datatype": "FP31"}, "'x' has an unknown datatype 'FP31'"),
        ({"base64": "!"}, "'x': its base64 is broken"),
        ({"base64": "é"}, "'x': its base64 is broken"),
        ({"base64": "AAAA"}, "needs 8 bytes, got 3"),
        ({"datatype": "BYTES", "base64": "/////w=="}, "'x' of BYTES and shape [2] needs at least"),
        ({"datatype": "BYTES", "shape": [1], "base64": "/////w=="}, "'x' ends within its element"),
        ({"datatype": "BYTES", "base64": "AQAAAP8CAAAA//4="}, "UTF-8"),
        (
            {"datatype": "BOOL", "base64": "AAI="},
            "inputs: 'x' of BOOL must have only bytes 0 and 1, got 2 at byte 1",
        ),
        ({"datatype": "INT4", "shape": [4], "base64": "AQIDBA=="}, "needs 2 bytes, got 4"),
    ],
)
def test_tensor_that_is_broken_says_how(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """A tensor written by hand or cut off is refused with a reason."""
    tensor = {"datatype": "FP32", "shape": [2], "base64": "AAAAAAAAAAA="} | change
    write(tmp_path, {"format": 1, "examples": [{"inputs": {"x": tensor}, "outputs": {}}]})
    with pytest.raises(LoadFailed) as caught:
        read_manifest(tmp_path)
    assert says in str(caught.value)


def test_digests_of_untouched_files_are_right(tmp_path: Path) -> None:
    """The files here are the published ones, including those in subfolders."""
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights.bin").write_bytes(b"1234")
    files = {name: hash_file(tmp_path / name) for name in ("model.onnx", "data/weights.bin")}
    verify_digests(tmp_path, Manifest(format=1, files=files), Digests())
    verify_digests(tmp_path, Manifest(format=1), Digests())


def test_changed_or_missing_file_is_named(tmp_path: Path) -> None:
    """One flipped bit is enough."""
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    manifest = Manifest(format=1, files={"model.onnx": hash_file(tmp_path / "model.onnx")})
    (tmp_path / "model.onnx").write_bytes(b"onny")
    with pytest.raises(LoadFailed, match=r"'model\.onnx' is not the file that was published"):
        verify_digests(tmp_path, manifest, Digests())
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(LoadFailed, match=r"published, but cannot be read: is missing"):
        verify_digests(tmp_path, manifest, Digests())


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/passwd", "a/../../b", "", "a\\b", "a\0b"])
def test_digests_reach_no_file_elsewhere(tmp_path: Path, name: str) -> None:
    """A manifest may come with a model from anywhere."""
    with pytest.raises(LoadFailed, match="not a file inside"):
        verify_digests(tmp_path, Manifest(format=1, files={name: "0" * 64}), Digests())


def test_digests_without_the_model_promise_nothing(tmp_path: Path) -> None:
    """A manifest that leaves out the one file that matters is a mistake."""
    (tmp_path / "labels.txt").write_text("a")
    manifest = Manifest(format=1, files={"labels.txt": hash_file(tmp_path / "labels.txt")})
    with pytest.raises(LoadFailed, match=r"not of model\.onnx"):
        verify_digests(tmp_path, manifest, Digests())


def floats(*values: float) -> dict[str, Array]:
    return {"y": np.array(values, dtype=np.float32)}


def test_example_fits_its_model_or_says_so() -> None:
    """An example is read with the specs of the local model."""
    example = Example(inputs=floats(1, 2), outputs={})
    spec = TensorSpec("y", "FP32", ("N",))
    np.testing.assert_array_equal(example.input_arrays([spec])["y"], [1, 2])
    with pytest.raises(LoadFailed, match="does not fit the model"):
        example.input_arrays([TensorSpec("y", "FP64", ("N",))])
    with pytest.raises(LoadFailed, match="does not fit the model"):
        example.input_arrays([spec, TensorSpec("x", "FP32", ("N",))])


def test_example_compares_the_outputs_it_has() -> None:
    """A model may have more outputs than its example."""
    example = Example(inputs={}, outputs=floats(1))
    assert not example.mismatch(floats(1) | {"more": np.zeros(3)})
    assert example.mismatch({"more": np.zeros(3)}) == "output 'y' is missing"


def test_example_is_compared_within_its_own_tolerance() -> None:
    """Without one, the tolerance is that of the same model on another machine."""
    assert "tolerance 1e-05 + 0.0001" in Example({}, floats(1)).mismatch(floats(1.1))
    assert not Example({}, floats(1), Tolerance(0.2, 0)).mismatch(floats(1.1))


def test_the_example_of_the_reference_is_a_manifest(tmp_path: Path) -> None:
    """It has every key, and no key that is not read."""
    page = (Path(__file__).parents[2] / "docs/reference/manifest.md").read_text()
    written = page.split("```json\n")[1].split("```")[0]
    (tmp_path / "manifest.json").write_text(written)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert set(json.loads(written)) == {one.name for one in fields(Manifest)}
    assert manifest.steps[1].what == "static INT8"
    assert manifest.features["image"].columns[0].quantiles[-1] == 16
    assert manifest.examples[0].outputs["scores"].tolist() == [[3.0]]
    assert manifest.texts[0].answer == "Hi!"


def described(*values: object) -> Distribution:
    array = np.array(values, np.object_ if isinstance(values[0], str) else np.float64)
    return describe_features({"x": array.reshape(-1, 1)})["x"].columns[0]


def test_numbers_are_described_by_quantiles_and_few_ones_by_shares() -> None:
    """What is not a number is counted, and in no figure."""
    found = described(*range(101), np.nan, np.inf)
    assert (found.count, found.missing, found.distinct, found.shares) == (103, 2, 101, {})
    assert found.quantiles == pytest.approx(list(range(0, 101, 5)))
    assert found.mean == 50
    assert described(0, 1, 1, 1).shares == {"1": 0.75, "0": 0.25}


def test_text_is_described_by_its_most_frequent_values_and_its_lengths() -> None:
    """Cut where it is long; an empty one is missing."""
    found = described("red", "red", "b" * 1000, "")
    assert (found.count, found.missing, found.distinct) == (4, 1, 2)
    assert list(found.shares) == ["red", "b" * 64]
    assert found.quantiles[0] == 3
    assert found.quantiles[-1] == 1000


@given(
    hnp.arrays(
        st.sampled_from(["f4", "f8", "i8", "u1", "?"]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
def test_any_distribution_can_be_written_and_read(array: Array) -> None:
    """This includes the largest numbers, no numbers, and NaN alone."""
    features = describe_features({"x": array})
    written = dump_manifest(Manifest(format=1, features=features))
    assert TypeAdapter(Manifest).validate_json(written).features == features


def test_wide_inputs_and_images_are_described_as_a_whole() -> None:
    """A manifest stays small."""
    features = describe_features({"wide": np.zeros((2, 257)), "image": np.zeros((2, 1, 8, 8))})
    assert [len(one.columns) for one in features.values()] == [1, 1]
