"""What a published version promises: `manifest.json` beside its `model.onnx`.

`cohort publish` writes it; a version without one is served as it is. Every key but `format` is
optional, and keys of a later Cohort are passed over.

    {"format": 1,
     "files": {"model.onnx": "<SHA-256 in hex>"},
     "source": {"framework": "pytorch", "version": "2.13.0"},
     "opset": 20,
     "difference": {"max_absolute": 1e-7, "max_relative": 2e-6},
     "size_bytes": {"before": 618496, "after": 181248},
     "latency_ms": {"before": 1.9, "after": 0.8},
     "examples": [{"inputs": {"image": {"datatype": "FP32", "shape": [1, 3], "base64": "…"}},
                   "outputs": {…}, "tolerance": {"absolute": 1e-5, "relative": 1e-4}}]}

A tensor is its bytes, little-endian and in C order, in base64: exact for every datatype, NaN
included, and a third of the size of decimal lists. BYTES is each element's length in four bytes
and its UTF-8, one after the other, as in the binary extension of the Open Inference Protocol.
"""

from __future__ import annotations

import binascii
import hashlib
import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from app.errors import CohortError, LoadFailed, quoted
from app.tensors import BY_NAME, Array, Arrays, TensorSpec, check_inputs

FILE = "manifest.json"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far floating point may be off: `absolute` + `relative` times what was expected."""

    absolute: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    relative: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-4


@dataclass(frozen=True, slots=True)
class Difference:
    """How far results are from what was expected, over all outputs.

    `mismatches` has a sentence for each output that is beyond the tolerance; the rest of it is
    about the pairs of finite numbers.
    """

    max_absolute: float = 0.0
    max_relative: float = 0.0
    mismatches: tuple[str, ...] = ()

    @property
    def within(self) -> bool:
        return not self.mismatches

    def __str__(self) -> str:
        return "; ".join(self.mismatches) or f"at most {self.max_absolute:.3g} off"


def encode_tensor(array: Array) -> dict[str, object]:
    """Write an array as a manifest does."""
    if array.dtype.kind in "OUS":
        datatype = "BYTES"
        parts = [one if isinstance(one, bytes) else str(one).encode() for one in array.flat]
        data = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    else:
        native = array.dtype.newbyteorder("=")
        datatype = next((name for name, row in BY_NAME.items() if row.dtype == native), "")
        if not datatype:
            raise ValueError(f"{array.dtype} is no datatype that can be sent over the wire")
        data = array.astype(native.newbyteorder("<")).tobytes()
    return {
        "datatype": datatype,
        "shape": list(array.shape),
        "base64": b64encode(data).decode("ascii"),
    }


def decode_tensor(written: object) -> Array:
    """Read an array as a manifest has it, read-only; a ValueError where it is none."""
    tensor = _tensor().validate_python(written)
    if tensor.datatype not in BY_NAME:
        raise ValueError(f"there is no datatype {quoted(tensor.datatype)}")
    try:
        data = b64decode(tensor.base64, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("its base64 is broken") from None
    count = math.prod(tensor.shape)
    array: Array
    if tensor.datatype == "BYTES":
        array = np.empty(len(data) // 4, dtype=np.object_)
        texts = _split(data)
        array = array[: len(texts)]
        array[:] = texts
    else:
        dtype = BY_NAME[tensor.datatype].dtype
        if len(data) % dtype.itemsize:
            raise ValueError(f"has {len(data)} bytes, which is no number of {tensor.datatype}")
        array = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False)
    if array.size != count:
        raise ValueError(f"has {array.size} values, its shape {list(tensor.shape)} holds {count}")
    array = array.reshape(tensor.shape)
    array.flags.writeable = False
    return array


def _split(data: bytes) -> list[str]:
    texts = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        part = data[at + 4 : at + 4 + length]
        at += 4 + length
        if at > len(data):
            raise ValueError("its BYTES end early")
        texts.append(part.decode())
    return texts


@dataclass(frozen=True, slots=True)
class _Tensor:
    datatype: str
    shape: tuple[Annotated[int, Field(ge=0, lt=2**40)], ...]
    base64: str


@cache
def _tensor() -> TypeAdapter[_Tensor]:
    return TypeAdapter(_Tensor)


def _decode(written: object) -> Arrays:
    if not isinstance(written, dict):
        raise ValueError("must be tensors by name")  # noqa: TRY004 - pydantic reports ValueErrors
    arrays: Arrays = {}
    for name, tensor in written.items():
        try:
            arrays[name] = decode_tensor(tensor)
        except ValidationError as error:
            raise ValueError(f"{quoted(name)}: {_explain(error)}") from None
        except ValueError as error:
            raise ValueError(f"{quoted(name)} {error}") from None
    return arrays


def _encode(arrays: Arrays) -> dict[str, Any]:
    return {name: encode_tensor(array) for name, array in arrays.items()}


Tensors = Annotated[Arrays, PlainValidator(_decode), PlainSerializer(_encode)]


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Inputs with the outputs that the model gave when it was published."""

    inputs: Tensors
    outputs: Tensors
    tolerance: Tolerance = field(default_factory=Tolerance)

    def input_arrays(self, specs: Sequence[TensorSpec]) -> Arrays:
        """The inputs for a model that takes `specs`; LoadFailed where it takes others."""
        try:
            check_inputs(specs, self.inputs)
        except CohortError as error:
            raise LoadFailed(f"an example of {FILE} does not fit the model: {error}") from error
        return dict(self.inputs)

    def compare(self, got: Mapping[str, Array]) -> Difference:
        """Compare what the model gives for `inputs` now; outputs not in the example may be any."""
        return compare(self.outputs, got, self.tolerance)


@dataclass(frozen=True, slots=True)
class Source:
    """What the model was made with."""

    framework: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """How far the published model was from its source when it was made."""

    max_absolute: float
    max_relative: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before preparing the model and after."""

    before: float
    after: float


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """What `cohort publish` wrote down about a version. `files` has SHA-256 digests, in hex."""

    format: Literal[1]
    files: Mapping[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = field(
        default_factory=dict
    )
    source: Source | None = None
    opset: int | None = None
    difference: Measured | None = None
    size_bytes: Change | None = None
    latency_ms: Change | None = None
    examples: tuple[Example, ...] = ()


@cache
def _manifest() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of the version in `folder`, None where it has none.

    Raises LoadFailed where it cannot be understood.
    """
    path = folder / FILE
    try:
        if not path.is_file() and (path.exists() or path.is_symlink()):
            raise LoadFailed(f"{FILE} is not a file")
        return _manifest().validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LoadFailed(f"{FILE} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise LoadFailed(f"{FILE}: {_explain(error)}") from None


def dump_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as `read_manifest` reads it."""
    return _manifest().dump_json(manifest, indent=1, exclude_none=True) + b"\n"


def _explain(error: ValidationError) -> str:
    problems = []
    for details in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, details["loc"]))
        if details["loc"] == ("format",) and details["type"] == "literal_error":
            return "its format is newer than this Cohort, or missing; publish the model anew"
        problems.append(f"{where}: {details['msg']}" if where else details["msg"])
    return "; ".join(problems[:5])


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_digests(folder: Path, manifest: Manifest) -> None:
    """Raise LoadFailed, naming the file, unless all files are those that were published."""
    for name, published in manifest.files.items():
        path = PurePosixPath(name)
        if not name or "\0" in name or "\\" in name or path.is_absolute() or ".." in path.parts:
            raise LoadFailed(f"{FILE}: {quoted(name)} is not a file inside the version's folder")
        try:
            found = digest(folder / path)
        except OSError as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else error.strerror
            raise LoadFailed(f"{quoted(name)} was published and cannot be read: {reason}") from None
        if found != published:
            raise LoadFailed(
                f"{quoted(name)} is not the file that was published: its SHA-256 starts with "
                f"{found[:12]}, {FILE} says {published[:12]}"
            )
    if manifest.files and "model.onnx" not in manifest.files:
        raise LoadFailed(f"{FILE} has digests, but none for model.onnx")


def compare(
    expected: Mapping[str, Array], got: Mapping[str, Array], tolerance: Tolerance
) -> Difference:
    """Say how far `got` is from `expected`.

    Floating point may be off within the tolerance, NaN is equal to NaN and infinity to itself;
    whole numbers, booleans and texts must be equal.
    """
    absolute = relative = 0.0
    mismatches = []
    for name, wanted in expected.items():
        one = _compare(wanted, got[name], tolerance) if name in got else "is missing"
        if isinstance(one, str):
            mismatches.append(f"output {quoted(name)} {one}")
            continue
        absolute, relative = max(absolute, one.max_absolute), max(relative, one.max_relative)
        mismatches += [f"output {quoted(name)} {what}" for what in one.mismatches]
    return Difference(absolute, relative, tuple(mismatches))


def _compare(wanted: Array, got: Array, tolerance: Tolerance) -> Difference | str:
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        return (
            f"is {got.dtype} of shape {list(got.shape)}, "
            f"expected {wanted.dtype} of shape {list(wanted.shape)}"
        )
    if not wanted.size:
        return Difference()
    if wanted.dtype.kind in "OUSbiu":
        if (unequal := np.atleast_1d(wanted != got)).any():
            return f"differs in {np.count_nonzero(unequal)} of {wanted.size} values"
        return Difference()
    a, b = wanted.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    same = finite | (a == b) | (np.isnan(a) & np.isnan(b))
    if not same.all():
        return f"differs in NaN or infinity at {_place(~same)}"
    off = np.zeros(a.shape)
    size = np.where(finite, np.abs(a), 0.0)
    ratio = np.zeros(a.shape)
    with np.errstate(over="ignore"):  # what overflows is beyond any tolerance
        np.subtract(a, b, out=off, where=finite)
        off = np.abs(off)
        np.divide(off, size, out=ratio, where=size > 0)
    beyond = off > tolerance.absolute + tolerance.relative * size
    what: tuple[str, ...] = ()
    if beyond.any():
        worst = float(np.where(beyond, off, 0.0).max())
        what = (
            f"is off by {worst:.3g} at {_place(np.where(beyond, off, 0.0) == worst)}, in "
            f"{np.count_nonzero(beyond)} of {a.size} values (tolerance {tolerance.absolute:g} + "
            f"{tolerance.relative:g} x the value)",
        )
    return Difference(float(off.max()), float(ratio.max()), what)


def _place(true: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    return str([int(index) for index in np.argwhere(true)[0]])
