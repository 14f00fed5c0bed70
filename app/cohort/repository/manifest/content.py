"""What is known of a published version: `manifest.json` beside its `model.onnx`.

`cohort publish` writes it; a version without one is served as it is. Every key but `format` is
optional, and unknown keys, of a later Cohort, are ignored. docs/reference/manifest.md has the whole
format, with an example.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from cohort.comparing import SAME_MODEL, Pair, Tolerance, explain
from cohort.errors import CohortError, LoadFailed, quoted
from cohort.repository.manifest.features import InputDistribution
from cohort.repository.manifest.steps import StepRecord
from cohort.repository.manifest.tensors import Tensors, explain_invalid
from cohort.row_independence import RowKind, RowVerdict
from cohort.tensors import Array, Arrays, TensorSpec, check_inputs

MANIFEST_FILE = "manifest.json"

MAX_MANIFEST_BYTES = 64 << 20
"""Room for examples of a few images; parsing it takes several times as much memory."""

MAX_MANIFEST_VALUES = 200_000
"""Lists and objects with more are refused unread: parsing them holds up all other threads. Those of
published versions have some thousands, an input of 256 columns 20,000."""


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
    """How far the published model's outputs were from those of its source.

    max_absolute: The largest absolute difference of any number.
    max_relative: The largest difference relative to the larger of the two numbers.
    rows: The rows that were compared; default 0: unknown.
    """

    max_absolute: float
    max_relative: float = 0.0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class PublishedAccuracy:
    """The share of rows that an output had right.

    output: The output that was compared with the labels.
    rows: How many rows there were.
    after: The share of the published model.
    before: The share of the source; default None: not measured.
    """

    output: str
    rows: int
    after: float
    before: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of the published model, and before it was prepared; None: not measured."""

    after: float
    before: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredOn:
    """What latencies were measured on, and the examples' outputs computed.

    provider: The active execution provider, such as "cpu".
    runtime: The version of ONNX Runtime; default "": unknown.
    machine: The processor, its cores and the GPUs; default "": unknown.
    """

    provider: str
    runtime: str = ""
    machine: str = ""


@dataclass(frozen=True, slots=True)
class PublishedRows:
    """What the graph proved of the model's rows; a server proves it again.

    verdict: The `RowKind`, or that of a later Cohort.
    reason: Why rows may influence each other, in a sentence; "" where they do not.
    input_axes, output_axes: The axis of rows of those that have them elsewhere than along axis 0;
        None where all requests of a run share the tensor. Empty where nothing was proven.
    """

    verdict: str
    reason: str = ""
    input_axes: Mapping[str, int | None] = field(default_factory=dict)
    output_axes: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: RowVerdict) -> PublishedRows:
        """What a manifest says of this verdict."""
        if not rows.independent:
            return cls(rows.kind.value, str(rows))
        outputs = {name: None if one is None else one.axis for name, one in rows.outputs.items()}
        return cls(rows.kind.value, "", _not_first(rows.inputs), _not_first(outputs))

    @property
    def independent(self) -> bool:
        """Whether rows were proven not to influence each other."""
        return self.verdict in (RowKind.PROVEN, RowKind.SHARED)


def _not_first(axes: Mapping[str, int | None]) -> dict[str, int | None]:
    return {name: axis for name, axis in axes.items() if axis != 0}


def _check_whole(value: object) -> object:
    if isinstance(value, (bool, float)):  # which equal 1, too
        raise ValueError("must be a whole number")  # noqa: TRY004 - as pydantic has it
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """What `cohort publish` recorded of a version.

    format: The version of the manifest's format.
    files: SHA-256 digests in hex, by the file's path in the version's folder; default none.
    model: The name that it was published under; default "": unknown.
    source: The framework that the model comes from; default None: unknown.
    opset: The version of ONNX's operator set; default None: unknown.
    steps: What was done to the model, in order; default: unknown.
    difference: How far the outputs were from the source's; default None: unknown.
    accuracy: The share of rows that it had right; default None: unknown.
    size_bytes: The size of its files; default None: unknown.
    latency_ms: The median duration of a run by its number of rows; default none.
    measured_on: What that was measured on; default None: unknown.
    rows: What the graph proved of its rows; default None: unknown.
    features: How the values of the inputs were distributed, by input; default: unknown.
    examples: Inputs with their outputs, which are compared at load; default none.
    """

    format: Annotated[Literal[1], BeforeValidator(_check_whole)]
    files: Mapping[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = field(
        default_factory=dict
    )
    model: str = ""
    source: SourceFramework | None = None
    opset: int | None = None
    steps: tuple[StepRecord, ...] = ()
    difference: SourceDifference | None = None
    accuracy: PublishedAccuracy | None = None
    size_bytes: Change | None = None
    latency_ms: Mapping[int, Change] = field(default_factory=dict)
    measured_on: MeasuredOn | None = None
    rows: PublishedRows | None = None
    features: Mapping[str, InputDistribution] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()


@cache
def _manifest() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of the version in `folder`, None where it has none.

    Raises LoadFailed where it cannot be understood.
    """
    content = read_manifest_bytes(folder)
    return None if content is None else parse_manifest(content)


def read_manifest_bytes(folder: Path) -> bytes | None:
    """The manifest's file as it is, None where there is none. Raises LoadFailed."""
    path = folder / MANIFEST_FILE
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise LoadFailed(f"{MANIFEST_FILE} is not a file")
        if found.st_size > MAX_MANIFEST_BYTES:
            raise LoadFailed(f"{MANIFEST_FILE} has more than {MAX_MANIFEST_BYTES >> 20} MiB")
        with path.open("rb") as file:
            return file.read(found.st_size)  # what /proc has may never end
    except FileNotFoundError:
        if path.is_symlink():
            raise LoadFailed(f"{MANIFEST_FILE} is a broken link") from None
        return None
    except OSError as error:
        raise LoadFailed(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from error


def parse_manifest(content: bytes) -> Manifest:
    """Understand a manifest. Raises LoadFailed."""
    if content.count(b",") > MAX_MANIFEST_VALUES:
        raise LoadFailed(f"{MANIFEST_FILE} has more than {MAX_MANIFEST_VALUES:,} values")
    try:
        manifest = _manifest().validate_json(content)
        json.loads(content, object_pairs_hook=_once, parse_int=str, parse_float=str)
    except ValidationError as error:
        raise LoadFailed(f"{MANIFEST_FILE}: {explain_invalid(error)}") from None
    except ValueError as error:
        raise LoadFailed(f"{MANIFEST_FILE}: {error}") from None
    return manifest


def _once(pairs: list[tuple[str, object]]) -> None:
    """Raise ValueError for a key that is there twice: each reader may take another of the two."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"duplicate key {quoted(key)}")
        seen.add(key)


def dump_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as `read_manifest` reads it."""
    return _manifest().dump_json(manifest, indent=1, exclude_none=True) + b"\n"
