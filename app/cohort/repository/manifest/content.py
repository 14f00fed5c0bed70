"""The record of a published version: `manifest.json` next to its `model.onnx`.

`cohort publish` writes it; a version without a manifest is served unverified. Every key except
`format` is optional. Unknown keys, from a later Cohort, are ignored. docs/reference/manifest.md
describes the format, with an example.
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
from cohort.repository.manifest.texts import MAX_TEXTS, TextExample
from cohort.row_independence import RowKind, RowVerdict
from cohort.tensors import Array, Arrays, TensorSpec, check_inputs

MANIFEST_FILE = "manifest.json"

MAX_MANIFEST_BYTES = 64 << 20
"""Room for examples of a few images; parsing takes several times as much memory."""

MAX_MANIFEST_VALUES = 200_000
"""Limit of values; a larger manifest is rejected before parsing, which blocks all other threads.
Published versions have some thousands, or 20,000 for an input of 256 columns."""


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Inputs, with the outputs that the model returned when it was published."""

    inputs: Tensors
    outputs: Tensors
    tolerance: Tolerance = SAME_MODEL

    def input_arrays(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Return the inputs for a model. Raises LoadFailed if they do not fit its `specs`."""
        try:
            check_inputs(specs, self.inputs)
        except CohortError as error:
            raise LoadFailed(
                f"an example of {MANIFEST_FILE} does not fit the model: {error}"
            ) from error
        return dict(self.inputs)

    def mismatch(self, got: Mapping[str, Array]) -> str:
        """Describe how the model's current outputs differ from `outputs`; "" if they do not.

        Outputs that are not in the example are ignored.
        """
        return explain(Pair(self.outputs, got), self.tolerance)


@dataclass(frozen=True, slots=True)
class SourceFramework:
    """The framework that made the model."""

    framework: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class SourceDifference:
    """The difference between the published model's outputs and those of its source.

    max_absolute: The largest absolute difference of any number.
    max_relative: The largest difference relative to the larger of the two numbers.
    rows: Number of compared rows; default 0: unknown.
    """

    max_absolute: float
    max_relative: float = 0.0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class PublishedAccuracy:
    """The share of rows for which an output was right.

    output: The output that was compared with the labels.
    rows: Number of rows.
    after: The share of the published model.
    before: The share of the source; default None: not measured.
    """

    output: str
    rows: int
    after: float
    before: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of the published model, and before preparation; default None: not measured."""

    after: float
    before: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredOn:
    """The hardware and software that measured latencies and computed the examples' outputs.

    provider: The active execution provider, such as "cpu".
    runtime: The version of ONNX Runtime; default "": unknown.
    machine: The processor, its cores and the GPUs; default "": unknown.
    """

    provider: str
    runtime: str = ""
    machine: str = ""


@dataclass(frozen=True, slots=True)
class PublishedRows:
    """The proof from the graph about the model's rows; a server proves it again.

    verdict: The `RowKind`, or that of a later Cohort.
    reason: A sentence about why rows may influence each other; default "": they do not.
    input_axes, output_axes: The axis of rows, by name, of tensors whose rows are not along axis 0.
        The value is None if all requests of a run share the tensor; default empty.
    """

    verdict: str
    reason: str = ""
    input_axes: Mapping[str, int | None] = field(default_factory=dict)
    output_axes: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: RowVerdict) -> PublishedRows:
        """Return the manifest's record of a verdict."""
        if not rows.independent:
            return cls(rows.kind.value, str(rows))
        outputs = {name: None if one is None else one.axis for name, one in rows.outputs.items()}
        return cls(rows.kind.value, "", _not_first(rows.inputs), _not_first(outputs))

    @property
    def independent(self) -> bool:
        """True if the rows were proven to be independent."""
        return self.verdict in (RowKind.PROVEN, RowKind.SHARED)


def _not_first(axes: Mapping[str, int | None]) -> dict[str, int | None]:
    return {name: axis for name, axis in axes.items() if axis != 0}


def _check_whole(value: object) -> object:
    if isinstance(value, (bool, float)):  # 1.0 and True equal 1
        raise ValueError("must be a whole number")  # noqa: TRY004 - pydantic expects a ValueError
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """The record that `cohort publish` writes of a version.

    format: The version of the manifest's format.
    files: SHA-256 digests in hex, by the file's path in the version's folder; default none.
    model: The name under which it was published; default "": unknown.
    source: The framework that the model comes from; default None: unknown.
    opset: The version of ONNX's operator set; default None: unknown.
    steps: The steps that prepared the model, in order; default: unknown.
    difference: The difference from the source's outputs; default None: unknown.
    accuracy: The share of rows for which it was right; default None: unknown.
    size_bytes: The size of its files; default None: unknown.
    latency_ms: The median duration of a run by its number of rows; default none.
    measured_on: The hardware and software of that measurement; default None: unknown.
    rows: The proof from the graph about its rows; default None: unknown.
    features: The distribution of the inputs' values, by input; default: unknown.
    examples: Inputs with their outputs, which are compared at load; default none.
    texts: Prompts of a language model with their answers, which are compared at load; default none.
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
    texts: Annotated[tuple[TextExample, ...], Field(max_length=MAX_TEXTS)] = ()


@cache
def _manifest() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of the version in `folder`; None if it does not exist.

    Raises LoadFailed if it is invalid.
    """
    content = read_manifest_bytes(folder)
    return None if content is None else parse_manifest(content)


def read_manifest_bytes(folder: Path) -> bytes | None:
    """Return the bytes of the manifest; None if it does not exist. Raises LoadFailed."""
    path = folder / MANIFEST_FILE
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise LoadFailed(f"{MANIFEST_FILE} is not a file")
        if found.st_size > MAX_MANIFEST_BYTES:
            raise LoadFailed(f"{MANIFEST_FILE} has more than {MAX_MANIFEST_BYTES >> 20} MiB")
        with path.open("rb") as file:
            return file.read(found.st_size)  # a file in /proc may be endless
    except FileNotFoundError:
        if path.is_symlink():
            raise LoadFailed(f"{MANIFEST_FILE} is a broken link") from None
        return None
    except OSError as error:
        raise LoadFailed(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from error


def parse_manifest(content: bytes) -> Manifest:
    """Parse and validate a manifest. Raises LoadFailed."""
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
    """Raise ValueError for a duplicate key, because readers differ in which of the two they use."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"duplicate key {quoted(key)}")
        seen.add(key)


def dump_manifest(manifest: Manifest) -> bytes:
    """Serialize a manifest for `read_manifest`."""
    return _manifest().dump_json(manifest, indent=1, exclude_none=True) + b"\n"
