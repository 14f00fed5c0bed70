"""Recognition of files that are not ONNX models, by their first bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HEAD_BYTES = 8192
"""Bytes read from a file: enough for the names of the first files of a ZIP archive."""


class _Kind(NamedTuple):
    """A kind of file: a test for it, its name, and the way to convert it to a model."""

    fits: Callable[[bytes], object]
    is_: str
    do: str


def _begins(*magic: bytes) -> Callable[[bytes], object]:
    return lambda head: head.startswith(magic)


def _at_4(magic: bytes) -> Callable[[bytes], object]:
    return lambda head: head[4:8] == magic


def _matches(pattern: bytes) -> Callable[[bytes], object]:
    return re.compile(pattern, re.DOTALL | re.IGNORECASE).match


def _zip_with(*parts: bytes) -> Callable[[bytes], object]:
    return lambda head: head.startswith(b"PK\3\4") and any(part in head for part in parts)


def _is_text(head: bytes) -> bool:
    return bool(head) and not re.search(rb"[\0-\x08\x0e-\x1f]", head)


_EXPORT = "export the model with the library that made it: torch.onnx.export, skl2onnx, onnxmltools"
_TF = "convert it with tf2onnx"
_AGAIN = "open it in an editor, and download the model again"

_POINTER = _Kind(
    _begins(b"version https://git-lfs"), "a Git LFS pointer", "`git lfs pull` fetches it"
)

KINDS = (
    _POINTER,
    _Kind(_matches(rb"\s*<(!doctype html|html|head)"), "a web page", _AGAIN),
    _Kind(
        _matches(rb"(\xef\xbb\xbf)?\s*<(\?xml|net)"),
        "XML, as OpenVINO's models are",
        "export the model to ONNX instead",
    ),
    _Kind(_zip_with(b"data.pkl"), "a file of torch.save", "load it and use torch.onnx.export"),
    _Kind(_zip_with(b"saved_model.pb", b"variables/"), "a zipped TensorFlow SavedModel", _TF),
    _Kind(
        _zip_with(b"model.weights.h5"),
        "a Keras file",
        'load it and use model.export("model.onnx", format="onnx")',
    ),
    _Kind(_zip_with(b".npy"), "an archive of numpy arrays", _EXPORT),
    _Kind(_begins(b"PK\3\4"), "a ZIP archive", "unpack it"),
    _Kind(_begins(b"\x1f\x8b"), "compressed by gzip", "unpack it: gunzip"),
    _Kind(
        _begins(b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf"),
        "compressed",
        "unpack it",
    ),
    _Kind(lambda head: head[257:262] == b"ustar", "a tar archive", "unpack it: tar -xf"),
    _Kind(
        _begins(b"\x89HDF\r\n\x1a\n"),
        "HDF5, as Keras saves (.h5)",
        'load it in Keras and use model.export("model.onnx", format="onnx")',
    ),
    _Kind(_at_4(b"TFL3"), "a TensorFlow Lite model", f"{_TF} --tflite"),
    _Kind(_at_4(b"ORTM"), "in ONNX Runtime's own format (.ort)", "put the .onnx it was made of"),
    _Kind(_begins(b"\x93NUMPY"), "a numpy array", _EXPORT),
    _Kind(_begins(b"GGUF"), "a GGUF file, for llama.cpp", "export the original model to ONNX"),
    _Kind(
        lambda head: head[8:9] == b"{" and b'"dtype"' in head,
        "safetensors: weights without a graph",
        "load them into their model and use torch.onnx.export, or optimum",
    ),
    _Kind(_begins(b"CBM1"), "a CatBoost model", 'use save_model("model.onnx", format="onnx")'),
    _Kind(_begins(b"tree\nversion="), "LightGBM's text", "use onnxmltools.convert_lightgbm"),
    _Kind(
        _matches(rb"\{L?[\0-\x20]*\"?.{0,9}learner"),
        "an XGBoost model",
        "use onnxmltools.convert_xgboost",
    ),
    _Kind(
        _matches(rb"\x08\x01\x12.*(saved_model|tensorflow|serve)"),
        "a TensorFlow SavedModel's graph",
        f"{_TF}, from the folder that has it",
    ),
    _Kind(
        _matches(rb"\x80[\2-\5]|c[\w.]+\n[\w.]+\n|\([dl]p?\d*\n?"),
        "a Python pickle, as torch.save, joblib and pickle write it",
        _EXPORT,
    ),
    _Kind(_matches(rb"\x78[\x01\x5e\x9c\xda]"), "compressed, as joblib.dump does", _EXPORT),
    _Kind(_matches(rb"\s*[{\[]\s*[\"{\[\]}]"), "JSON", _AGAIN),
    _Kind(lambda head: head and not head.strip(b"\0"), "nothing but zeros", "copy it again"),
    _Kind(_is_text, "text", _AGAIN),
)
"""Kinds in the order of their tests: specific kinds precede general ones."""


def why_pointer(path: Path) -> str:
    """Return a hint if a file is only a Git LFS pointer; "" if it is not.

    Raises OSError.
    """
    with path.open("rb") as file:
        is_pointer = _POINTER.fits(file.read(HEAD_BYTES))
    return f"{_POINTER.is_}: {_POINTER.do}" if is_pointer else ""


def recognize(path: Path) -> str:
    """Return the kind of a file that is not ONNX, and a hint; "" if the kind is unknown.

    Raises OSError.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    found = next((kind for kind in KINDS if kind.fits(head)), None)
    return f"{found.is_}, not ONNX: {found.do}" if found else ""
