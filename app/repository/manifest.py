"""What is known of a published version: `manifest.json` beside its `model.onnx`.

`cohort publish` writes it; a version without one is served as it is. Every key but `format` is
optional, and unknown keys, of a later Cohort, are ignored.

    {"format": 1,
     "files": {"model.onnx": "<SHA-256 in hex>"},
     "source": {"framework": "pytorch", "version": "2.13.0"},
     "opset": 20,
     "difference": {"max_absolute": 1e-7, "max_relative": 2e-6},
     "size_bytes": {"before": 618496, "after": 181248},
     "latency_ms": {"before": 1.9, "after": 0.8},
     "examples": [{"inputs": {"image": {"datatype": "FP32", "shape": [1, 3], "base64": "…"}},
                   "outputs": {…}, "tolerance": {"absolute": 1e-5, "relative": 1e-4}}]}

A tensor is its bytes in base64, as the binary extension of the Open Inference Protocol has them
(`app.codec.binary`): exact for every datatype, NaN included, and a third of the size of decimal
lists.
"""

from __future__ import annotations

import stat
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from app.codec import from_bytes, to_bytes
from app.comparing import SAME_MODEL, Pair, Tolerance, explain
from app.errors import CohortError, InvalidInput, LoadFailed, quoted
from app.session import Digests, why_pointer
from app.tensors import BY_DTYPE, Array, Arrays, TensorSpec, check_inputs

MANIFEST_FILE = "manifest.json"

MAX_MANIFEST_BYTES = 64 << 20
"""Room for examples of a few images; parsing it takes several times as much memory."""


def _write_tensor(array: Array) -> dict[str, object]:
    datatype = BY_DTYPE.get(array.dtype.newbyteorder("="))
    if datatype is None:
        raise ValueError(f"{array.dtype} is not a datatype that can be sent over the wire")
    return {
        "datatype": datatype.name,
        "shape": list(array.shape),
        "base64": b64encode(to_bytes(array)).decode("ascii"),
    }


def _read_tensor(name: str, written: object) -> Array:
    """Read an array as a manifest has it, read-only; a ValueError where it is none."""
    tensor = _tensor().validate_python(written)
    try:
        data = b64decode(tensor.base64, validate=True)
    except ValueError:
        raise ValueError("its base64 is broken") from None
    array = from_bytes(data, tensor.datatype, tensor.shape, name=name)
    array.flags.writeable = False
    return array


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
            arrays[name] = _read_tensor(name, tensor)
        except ValidationError as error:
            raise ValueError(f"{quoted(name)}: {_explain(error)}") from None
        except ValueError as error:
            raise ValueError(f"{quoted(name)}: {error}") from None
        except InvalidInput as error:
            problem = str(error).removeprefix("input ")  # it may be an output
            raise ValueError(problem) from None
    return arrays


def _encode(arrays: Arrays) -> dict[str, Any]:
    return {name: _write_tensor(array) for name, array in arrays.items()}


Tensors = Annotated[Arrays, PlainValidator(_decode), PlainSerializer(_encode)]


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Inputs with the outputs that the model gave when it was published."""

    inputs: Tensors
    outputs: Tensors
    tolerance: Tolerance = SAME_MODEL

    def input_arrays(self, specs: Sequence[TensorSpec]) -> Arrays:
        """The inputs for a model that takes `specs`; LoadFailed where it takes others."""
        try:
            check_inputs(specs, self.inputs)
        except CohortError as error:
            raise LoadFailed(
                f"an example of {MANIFEST_FILE} does not fit the model: {error}"
            ) from error
        return dict(self.inputs)

    def mismatch(self, got: Mapping[str, Array]) -> str:
        """Say how what the model gives for `inputs` now differs from `outputs`; "" if it does not.

        Outputs that are not in the example may be any.
        """
        return explain(Pair(self.outputs, got), self.tolerance)


@dataclass(frozen=True, slots=True)
class SourceFramework:
    """What the model was made with."""

    framework: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class SourceDifference:
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
    """What `cohort publish` recorded of a version.

    format: The version of the manifest's format.
    files: SHA-256 digests in hex, by the file's path in the version's folder; default none.
    source: The framework that the model comes from; default None: unknown.
    opset: The version of ONNX's operator set; default None: unknown.
    difference: How far the outputs were from the source's; default None: unknown.
    size_bytes: The model's size before and after preparing it; default None: unknown.
    latency_ms: The duration of a run before and after preparing it; default None: unknown.
    examples: Inputs with their outputs, which are compared at load; default none.
    """

    format: Literal[1]
    files: Mapping[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = field(
        default_factory=dict
    )
    source: SourceFramework | None = None
    opset: int | None = None
    difference: SourceDifference | None = None
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
    path = folder / MANIFEST_FILE
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise LoadFailed(f"{MANIFEST_FILE} is not a file")
        if found.st_size > MAX_MANIFEST_BYTES:
            raise LoadFailed(f"{MANIFEST_FILE} has more than {MAX_MANIFEST_BYTES >> 20} MiB")
        with path.open("rb") as file:
            content = file.read(found.st_size)  # what /proc has may never end
        return _manifest().validate_json(content)
    except FileNotFoundError:
        if path.is_symlink():
            raise LoadFailed(f"{MANIFEST_FILE} is a broken link") from None
        return None
    except OSError as error:
        raise LoadFailed(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise LoadFailed(f"{MANIFEST_FILE}: {_explain(error)}") from None


def dump_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as `read_manifest` reads it."""
    return _manifest().dump_json(manifest, indent=1, exclude_none=True) + b"\n"


def _explain(error: ValidationError) -> str:
    problems = []
    for details in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, details["loc"]))
        if details["loc"] == ("format",) and details["type"] == "literal_error":
            return "its format is newer than this Cohort, or missing; publish the model again"
        problem = details["msg"].removeprefix("Value error, ")  # pydantic's, before our own words
        problems.append(f"{where}: {problem}" if where else problem)
    return "; ".join(problems[:5])


def verify_digests(folder: Path, manifest: Manifest, digests: Digests) -> None:
    """Raise LoadFailed, naming the file, unless all files are those that were published."""
    for name, published in manifest.files.items():
        path = PurePosixPath(name)
        if not name or "\0" in name or "\\" in name or path.is_absolute() or ".." in path.parts:
            raise LoadFailed(
                f"{MANIFEST_FILE}: {quoted(name)} is not a file inside the version's folder"
            )
        try:
            found = digests.of(folder / path)
        except OSError as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else error.strerror
            raise LoadFailed(
                f"{quoted(name)} was published, but cannot be read: {reason}"
            ) from None
        if found != published and (pointer := why_pointer(folder / path)):
            raise LoadFailed(f"{quoted(name)} is {pointer}")
        if found != published:
            raise LoadFailed(
                f"{quoted(name)} is not the file that was published: its SHA-256 starts with "
                f"{found[:12]}, {MANIFEST_FILE} says {published[:12]}"
            )
    if manifest.files and "model.onnx" not in manifest.files:
        raise LoadFailed(f"{MANIFEST_FILE} has digests, but not of model.onnx")
