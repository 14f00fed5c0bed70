"""Read, write and identify ONNX files with their external data."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import onnx
from onnx.external_data_helper import convert_model_to_external_data, load_external_data_for_model

from cohort.errors import LoadFailed
from cohort.session import ANY_MODEL, Opener, SessionOptions
from cohort.session.rules import EXTENSIONS
from cohort_prepare.failures import Misused, name_path
from cohort_prepare.frameworks.onnx_values import MAX_INLINE_BYTES


def read_onnx(path: Path) -> onnx.ModelProto:
    """Read a model with all its weights. Raises Misused if `path` is not a model.

    External data is read from the model's folder only.
    """
    external = external_files(path)
    try:
        model = onnx.load(path, load_external_data=False)
        if external:
            load_external_data_for_model(model, str(path.parent))
            for weight in model.graph.initializer:
                weight.ClearField("data_location")  # store the weights in the model
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # raised by protobuf or onnx
        raise Misused(f"{path} is not an ONNX model, or is truncated: {error}") from error
    return model


TEXT_OPERATORS, IMAGE_OPERATORS = "ai.onnx.contrib", "com.microsoft.extensions"
"""The domains of onnxruntime-extensions."""


def serving_options(model: onnx.ModelProto) -> SessionOptions:
    """Return options that open a model, with onnxruntime-extensions if the model uses it."""
    domains = {one.domain for one in model.opset_import}
    uses = not domains.isdisjoint({TEXT_OPERATORS, IMAGE_OPERATORS})
    return SessionOptions(custom_op_libraries=(EXTENSIONS,) if uses else ())


def options_for(path: Path) -> SessionOptions:
    """Return the `serving_options` of the model in a file. Raises Misused."""
    try:
        return serving_options(onnx.load(path, load_external_data=False))
    except Exception as error:  # raised by protobuf
        raise Misused(f"{path} is not an ONNX model, or is truncated: {error}") from error


def external_files(path: Path) -> list[str]:
    """Return the paths of the model's external data. Raises Misused if it cannot be read."""
    try:
        return Opener(path, rules=ANY_MODEL).external()
    except LoadFailed as error:
        raise Misused(name_path(path, error)) from error


def model_size(path: Path) -> int:
    """Return the bytes of the model's file and its external data."""
    return sum((path.parent / name).stat().st_size for name in [path.name, *external_files(path)])


def model_digest(path: Path) -> str:
    """Return the SHA-256 in hex of the model's file and its external data, if any."""
    opener = Opener(path, rules=ANY_MODEL)
    try:
        digests = opener.file_digests()
    except LoadFailed as error:
        raise Misused(name_path(path, error)) from error
    if len(digests) == 1:
        return digests[path.name]
    return hashlib.sha256("\n".join(digests.values()).encode()).hexdigest()


def write_onnx(model: onnx.ModelProto, path: Path) -> None:
    """Write a model to `path` atomically.

    Weights above MAX_INLINE_BYTES go to `<name>.data` next to it, which is written first. The same
    model gives the same bytes. `model` keeps its weights. Raises OSError.
    """
    with temporary_folder(path.parent) as folder:
        made = folder / path.name
        write_onnx_to(model, made)
        data = made.with_name(made.name + ".data")
        beside = path.with_name(data.name)
        if data.exists():
            data.replace(beside)
        made.replace(path)


def write_onnx_to(model: onnx.ModelProto, path: Path) -> None:
    """Write a model, as `write_onnx` does, to a file in an empty folder."""
    if model.ByteSize() > MAX_INLINE_BYTES:
        split = onnx.ModelProto()
        split.CopyFrom(model)
        convert_model_to_external_data(split, location=path.name + ".data")
        onnx.save(split, path)
    else:
        path.write_bytes(model.SerializeToString(deterministic=True))
    for written in path.parent.iterdir():
        with written.open("rb") as file:
            os.fsync(file.fileno())


_PREPARING = ".preparing-"

ABANDONED_SECONDS = 86_400.0
"""Age at which an unchanged temporary folder is deleted: its process was killed."""


def sweep(beside: Path, prefix: str) -> None:
    """Delete temporary folders in `beside` that killed processes left."""
    for path in beside.glob(prefix + "*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """Yield a folder on the same disk as `beside`; delete it afterwards. Raises OSError.

    Folders that were made for it are deleted as well if they are empty.
    """
    made = [one for one in (beside, *beside.parents) if not one.exists()]
    try:
        beside.mkdir(parents=True, exist_ok=True)
        sweep(beside, _PREPARING)
        folder = Path(tempfile.mkdtemp(dir=beside, prefix=_PREPARING))
    except OSError as error:  # its path is the temporary folder's, not the user's
        reason = f"cannot write there, {error.strerror or error}"
        raise OSError(error.errno, reason, str(beside)) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # not empty
            for one in made:
                one.rmdir()
