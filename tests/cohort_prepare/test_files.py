"""Models and arrays on disk."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from cohort.session import open_session
from cohort.tensors import TensorSpec
from cohort_prepare import onnx_files
from cohort_prepare.evaluating.accuracy import fit_labels
from cohort_prepare.evaluating.cases import (
    Cases,
    fit_cases,
    read_cases,
    read_labels,
    write_cases,
)
from cohort_prepare.failures import Misused
from cohort_prepare.steps import StepDifference, StepRecord, add_step, read_steps
from tests import onnx_models


def test_weights_above_a_size_go_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model reads back the same, wherever its weights are, and nothing else is left behind."""
    model = onnx_models.slow(nodes=2)
    onnx_files.write_onnx(model, tmp_path / "small.onnx")
    monkeypatch.setattr(onnx_files, "MAX_INLINE_BYTES", 0)
    onnx_files.write_onnx(model, tmp_path / "large.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {
        *("small.onnx", "large.onnx", "large.onnx.data"),
    }
    assert onnx_files.external_files(tmp_path / "large.onnx") == ["large.onnx.data"]
    assert onnx_files.read_onnx(tmp_path / "large.onnx") == (
        onnx_files.read_onnx(tmp_path / "small.onnx")
    )
    assert open_session(tmp_path / "large.onnx").inputs == (
        open_session(tmp_path / "small.onnx").inputs
    )
    assert onnx_files.model_digest(tmp_path / "large.onnx") != (
        onnx_files.model_digest(tmp_path / "small.onnx")
    )


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x0a" + b"\xff" * 40])
def test_what_is_no_model_is_said(tmp_path: Path, content: bytes) -> None:
    """The error names the file and its real content."""
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(Misused, match=r"model\.onnx"):
        onnx_files.read_onnx(tmp_path / "model.onnx")


def test_cases_come_back(tmp_path: Path) -> None:
    """Numbers and text come back, as inputs and as expected outputs."""
    words = np.array(["a", "bcd"], object)
    cases = Cases({"x": np.eye(2, dtype=np.float32), "words": words}, {"y": np.arange(2)})
    write_cases(tmp_path / "cases.npz", cases)
    back = read_cases(tmp_path / "cases.npz")
    assert (back.rows, list(back.inputs), list(back.outputs)) == (2, ["x", "words"], ["y"])
    assert back.inputs["words"].dtype == object
    assert back.inputs["words"].tolist() == ["a", "bcd"]
    np.testing.assert_array_equal(back.part(1, 2).outputs["y"], [1])


def test_pickles_are_not_read(tmp_path: Path) -> None:
    """An array of objects is refused, and the error names a type to use instead."""
    np.savez(tmp_path / "cases.npz", x=np.array([{}], object))
    with pytest.raises(Misused, match=r"astype\(str\)"):
        read_cases(tmp_path / "cases.npz")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (f"{{'descr':'<f4','fortran_order':False,'shape':{'(' * 1000}", "cannot be read"),
        ("(" * 9000, "cannot be read"),
        ("{'descr':'<f4'}", "cannot be read"),
        ("{'descr':'|O','fortran_order':False,'shape':(1,)}", "has Python objects"),
    ],
)
def test_headers_that_python_cannot_parse_are_refused(
    tmp_path: Path, header: str, said: str
) -> None:
    """The error names the file for any header, and objects differ from invalid data."""
    content = header.encode().ljust(9999) + b"\n"
    with zipfile.ZipFile(tmp_path / "cases.npz", "w") as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content)
    with pytest.raises(Misused, match=rf"cases\.npz.*{said}"):
        read_cases(tmp_path / "cases.npz")


def test_labels_that_their_file_does_not_hold_are_refused(tmp_path: Path) -> None:
    """One that promises 2**50 of them takes no memory; nor is an archive a list of labels."""
    with (tmp_path / "lie.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<i8", "fortran_order": False, "shape": (1 << 50,)}
        )
    np.savez(tmp_path / "archive.npz", labels=np.arange(3))
    for name in ("lie.npy", "archive.npz"):
        with pytest.raises(Misused, match=rf"{name} is not an \.npy file"):
            read_labels(tmp_path / name)
    np.save(tmp_path / "labels.npy", np.array(["a", "b"]))
    assert read_labels(tmp_path / "labels.npy", 2).tolist() == ["a", "b"]
    with pytest.raises(Misused, match=r"labels of shape \[2\], but 3 rows need one each"):
        read_labels(tmp_path / "labels.npy", 3)


def test_labels_are_classes_or_their_numbers() -> None:
    """Classes match by name or by number, whole floats included; an error lists the valid ones."""
    numbers, names = np.array([0.0, 2.0]), np.array(["a", "c"], object)
    assert fit_labels(numbers, 3).tolist() == [0, 2]
    assert fit_labels(names, 3, ("a", "b", "c")).tolist() == ["a", "c"]
    assert fit_labels(numbers, 3, ("a", "b", "c")).tolist() == ["a", "c"]
    assert fit_labels(np.array([1, 5]), 2, (1, 5)).tolist() == [1, 5]
    for wrong in (names, np.array([-5]), np.array([0.25]), np.array([2**62])):
        with pytest.raises(Misused, match="one of the model's 3 classes: the numbers 0 to 2"):
            fit_labels(wrong, 3)


def test_cases_that_do_not_fit_are_said(tmp_path: Path) -> None:
    """Doubles become floats; the error about a wrong name contains the right one."""
    specs = [TensorSpec("pixels", "FP32", (None, 2))]
    fitted = fit_cases(Cases({"pixels": np.eye(2)}), specs, tmp_path / "cases.npz")
    assert fitted.inputs["pixels"].dtype == np.float32
    with pytest.raises(Misused, match="did you mean 'pixels'"):
        fit_cases(Cases({"pixel": np.eye(2)}), specs, tmp_path / "cases.npz")
    with pytest.raises(Misused, match=r"must have shape \[\?, 2\], got \[3, 3\]"):
        fit_cases(Cases({"pixels": np.eye(3)}), specs, tmp_path / "cases.npz")


def test_steps_travel_with_the_model(tmp_path: Path) -> None:
    """Each command appends its step; invalid records are ignored."""
    model = onnx_models.mlp()
    first = StepRecord("convert", "MLP", "pytorch", {"torch": "2.13.0"})
    second = StepRecord(
        "quantize", options={"recipe": "static"}, difference=StepDifference(0.5, 0.1)
    )
    add_step(model, first)
    add_step(model, second)
    onnx_files.write_onnx(model, tmp_path / "model.onnx")
    assert read_steps(onnx_files.read_onnx(tmp_path / "model.onnx")) == (first, second)
    model = onnx_models.mlp()
    onnx.helper.set_model_props(model, {"cohort.steps": "[1, 2"})
    assert read_steps(model) == ()


def test_a_failure_leaves_no_folder_of_a_model(tmp_path: Path) -> None:
    """Folders that were made for a temporary folder are deleted, unless they have a file."""
    kept = tmp_path / "kept"
    with pytest.raises(Misused), onnx_files.temporary_folder(tmp_path / "models/chat"):
        raise Misused("no")
    with onnx_files.temporary_folder(kept):
        (kept / "model.onnx").touch()
    assert [*tmp_path.iterdir()] == [kept]
