"""Files that are stored as a model and are not one."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from cohort.errors import LoadFailed
from cohort.session import Opener
from cohort.session.failures import NEWEST_ONNX_BY_IR, NEWEST_ONNX_BY_OPSET
from tests import onnx_models

ROOT = Path(__file__).parents[2]


def zipped(*names: str) -> bytes:
    """Return a ZIP archive of small files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.onnx"))
    return buffer.getvalue()


def saved(array: NDArray[np.float64]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
MODEL = onnx_models.mlp().SerializeToString()

KINDS = {
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "`git lfs pull`"),
    "html": (
        b"\n<!DOCTYPE html><html>Sign in</html>",
        "a web page, not ONNX: open it in an editor",
    ),
    "xml": (b'<?xml version="1.0"?><net name="m">', "XML, as OpenVINO's"),
    "pickle": (pickle.dumps({"a": 1}), "a Python pickle"),
    "old pickle": (pickle.dumps(np.zeros(3), protocol=0), "a Python pickle"),
    "joblib": (b"\x78\x9c\x4b\x4c\x4a\x06\x00", "compressed, as joblib.dump does"),
    "torch.save": (zipped("model/data.pkl", "model/version"), "use torch.onnx.export"),
    "keras": (zipped("metadata.json", "config.json", "model.weights.h5"), "a Keras file"),
    "savedmodel.zip": (zipped("m/saved_model.pb"), "SavedModel, not ONNX: convert it with tf2onnx"),
    "saved_model.pb": (b"\x08\x01\x12\x8e\x02\x0a\x09\x0a\x05serve", "convert it with tf2onnx"),
    "npz": (zipped("arr_0.npy"), "an archive of numpy arrays"),
    "npy": (saved(np.zeros(3)), "a numpy array"),
    "zip": (zipped("model.onnx"), "a ZIP archive, not ONNX: unpack it"),
    "gzip": (gzip.compress(MODEL), "compressed by gzip, not ONNX: unpack it"),
    "tar": (tarred(), "a tar archive"),
    "h5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5, as Keras saves"),
    "tflite": (struct.pack("<I", 28) + b"TFL3" + bytes(64), "a TensorFlow Lite model"),
    "ort": (struct.pack("<I", 28) + b"ORTM" + bytes(64), "in ONNX Runtime's own format"),
    "safetensors": (struct.pack("<Q", len(HEADER)) + HEADER + bytes(4), "weights without a graph"),
    "gguf": (b"GGUF\3\0\0\0" + bytes(64), "a GGUF file"),
    "catboost": (b"CBM1" + bytes(64), "a CatBoost model"),
    "lightgbm": (b"tree\nversion=v4\n", "onnxmltools.convert_lightgbm"),
    "xgboost": (b'{"learner":{"attributes":{}}}', "onnxmltools.convert_xgboost"),
    "ubj": (b"{L\0\0\0\0\0\0\0\7learner{", "onnxmltools.convert_xgboost"),
    "json": (b'{"error":"Repository Not Found"}', "JSON, not ONNX: open it in an editor"),
    "text": (b"Entry not found", "text, not ONNX: open it in an editor"),
    "zeros": (bytes(4096), "nothing but zeros, not ONNX: copy it again"),
    "part": (MODEL[:150], "not an ONNX model, or is truncated"),
}


@pytest.mark.parametrize(("content", "told"), KINDS.values(), ids=KINDS)
def test_what_is_no_model_is_called_what_it_is(tmp_path: Path, content: bytes, told: str) -> None:
    """The error has the fix; a truncated model is not mistaken for another kind."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(LoadFailed) as raised:
        Opener(path).read()
    assert str(raised.value).startswith("model.onnx is ")
    assert told in str(raised.value)


def test_weights_under_another_name_are_found(tmp_path: Path) -> None:
    """If both files were renamed, the model refers to the former name."""
    path = tmp_path / "my.onnx"
    onnx.save_model(
        onnx_models.mlp(),
        path,
        save_as_external_data=True,
        location="my.onnx.data",
        size_threshold=0,
    )
    path.rename(tmp_path / "model.onnx")
    (tmp_path / "my.onnx.data").rename(tmp_path / "model.onnx.data")
    with pytest.raises(LoadFailed) as raised:
        Opener(tmp_path / "model.onnx").read()
    assert str(raised.value) == (
        "its external data 'my.onnx.data' is missing: copy that file, under this name, into "
        "the folder of model.onnx (model.onnx.data is there: rename it)"
    )


def test_weights_that_were_cut_off_are_told(tmp_path: Path) -> None:
    """A copy may have ended early, or a Git LFS pointer is in their place."""
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "model.onnx")
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:42])
    with pytest.raises(LoadFailed, match=r"its external data ends after 42 bytes"):
        Opener(path).open()
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(LoadFailed, match=r"'weights.bin' is a Git LFS pointer: `git lfs pull`"):
        Opener(path).open()


def test_the_onnx_that_is_told_writes_no_more_than_it_should() -> None:
    """The numbers are from onnx's own table; the newest one is the version of the tests."""
    for known, column in ((NEWEST_ONNX_BY_IR, 1), (NEWEST_ONNX_BY_OPSET, 2)):
        written: dict[int, str] = {}
        for row in onnx.helper.VERSION_TABLE:
            written[int(row[column])] = ".".join(str(row[0]).split(".")[:2])
        assert known == {number: written[number] for number in known}
        pinned = (ROOT / "pyproject.toml").read_text()
        assert f'"onnx=={list(known.values())[-1]}.*"' in pinned
