"""ONNX files with their external data: read, written whole or not at all, and told apart."""

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
from cohort_prepare.failures import Misused
from cohort_prepare.frameworks.onnx_values import MAX_INLINE_BYTES


def read_onnx(path: Path) -> onnx.ModelProto:
    """Read a model with all its weights. Raises Misused where `path` has none.

    External data is taken from the model's own folder only.
    """
    external = external_files(path)
    try:
        model = onnx.load(path, load_external_data=False)
        if external:
            load_external_data_for_model(model, str(path.parent))
            for weight in model.graph.initializer:
                weight.ClearField("data_location")  # as in a file that has them inside
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # protobuf's and onnx's own
        raise Misused(f"{path} is not an ONNX model, or is truncated: {error}") from error
    return model


TEXT_OPERATORS, IMAGE_OPERATORS = "ai.onnx.contrib", "com.microsoft.extensions"
"""The domains of onnxruntime-extensions."""


def serving_options(model: onnx.ModelProto) -> SessionOptions:
    """What a model needs to open: the library of onnxruntime-extensions, where it uses that."""
    domains = {one.domain for one in model.opset_import}
    uses = not domains.isdisjoint({TEXT_OPERATORS, IMAGE_OPERATORS})
    return SessionOptions(custom_op_libraries=(EXTENSIONS,) if uses else ())


def options_for(path: Path) -> SessionOptions:
    """The same for the model in a file. Raises Misused."""
    try:
        return serving_options(onnx.load(path, load_external_data=False))
    except Exception as error:  # protobuf's own
        raise Misused(f"{path} is not an ONNX model, or is truncated: {error}") from error


def external_files(path: Path) -> list[str]:
    """Where the model's external data lies in its folder. Raises Misused where it has no model."""
    try:
        return Opener(path, rules=ANY_MODEL).external()
    except LoadFailed as error:
        raise Misused(f"{path}: {error}") from error


def model_size(path: Path) -> int:
    """The bytes of the model's file and its external data."""
    return sum((path.parent / name).stat().st_size for name in [path.name, *external_files(path)])


def model_digest(path: Path) -> str:
    """The SHA-256 of the model's file and, where it has some, of its external data, in hex."""
    opener = Opener(path, rules=ANY_MODEL)
    try:
        digests = opener.file_digests()
    except LoadFailed as error:
        raise Misused(f"{path}: {error}") from error
    if len(digests) == 1:
        return digests[path.name]
    return hashlib.sha256("\n".join(digests.values()).encode()).hexdigest()


def write_onnx(model: onnx.ModelProto, path: Path) -> None:
    """Write a model in place of what is at `path`, so that nobody reads half of it.

    Weights above MAX_INLINE_BYTES go to `<name>.data` beside it, which is in place before the
    model is. The same model gives the same bytes. `model` keeps its weights. Raises OSError.
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
    """The same for a file in a folder of one's own."""
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
"""After so long without a change, a temporary folder is nobody's: its process was killed."""


def sweep(beside: Path, prefix: str) -> None:
    """Delete the temporary folders in `beside` that killed processes left there."""
    for path in beside.glob(prefix + "*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """A folder on the same disk as `beside`, gone afterwards. Raises OSError."""
    try:
        beside.mkdir(parents=True, exist_ok=True)
        sweep(beside, _PREPARING)
        folder = Path(tempfile.mkdtemp(dir=beside, prefix=_PREPARING))
    except OSError as error:  # which names what nobody asked for
        reason = f"cannot write there, {error.strerror or error}"
        raise OSError(error.errno, reason, str(beside)) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
