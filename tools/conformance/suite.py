"""The ONNX standard's backend suite, as the `onnx` wheel ships it: models, inputs, answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TypeProto, numpy_helper
from onnx.backend.test.runner import Runner

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"

# onnx.backend.test.loader's; no case of the wheel has others.
RTOL, ATOL = 1e-3, 1e-7

Value = Any  # an array; in cases that are not only tensors also a list, or None


@dataclass(frozen=True)
class Sample:
    """Inputs and the right outputs, by name."""

    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]


@dataclass(frozen=True)
class Case:
    """A model with inputs and the right answers."""

    name: str
    model: Path

    @cached_property
    def _graph(self) -> onnx.GraphProto:
        return onnx.load(self.model, load_external_data=False).graph

    @cached_property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """The inputs a caller gives: all but the weights."""
        weights = {weight.name for weight in self._graph.initializer}
        return [one for one in self._graph.input if one.name not in weights]

    @cached_property
    def outputs(self) -> list[onnx.ValueInfoProto]:
        """The outputs."""
        return list(self._graph.output)

    @property
    def only_tensors(self) -> bool:
        """Return True if every input and output is a tensor."""
        return all(one.type.HasField("tensor_type") for one in (*self.inputs, *self.outputs))

    @property
    def element_types(self) -> set[int]:
        """ONNX's numbers for the datatypes of the inputs and outputs."""
        return {one.type.tensor_type.elem_type for one in (*self.inputs, *self.outputs)}

    def samples(self) -> Iterator[Sample]:
        """Yield each data set of the case from disk; made up for a network without weights."""
        folders = sorted(self.model.parent.glob("test_data_set_*"))
        for folder in folders:
            # The files count the weights among the inputs, as old models do.
            yield Sample(
                _read(folder, "input", list(self._graph.input)),
                _read(folder, "output", self.outputs),
            )
        if not folders:
            yield Sample(
                {one.name: Runner.generate_dummy_data(one) for one in self.inputs},
                _read(self.model.parent, f"{self.model.stem}_output", self.outputs),
            )


def cases() -> list[Case]:
    """Return every case of the suite, always in the same order."""
    found = []
    for kind in ("node", "simple", "pytorch-converted", "pytorch-operator", "real"):
        for folder in sorted((DATA / kind).iterdir()):
            model = folder / "model.onnx"
            if not model.is_file() and (folder / "data.json").is_file():
                url = json.loads((folder / "data.json").read_text())["url"]
                model = DATA / url.removeprefix("onnx/backend/test/data/")
            if model.is_file():
                found.append(Case(folder.name, model))
    return found


def _read(folder: Path, what: str, wanted: Sequence[onnx.ValueInfoProto]) -> dict[str, Value]:
    values = {}
    for number, one in enumerate(wanted):
        path = folder / f"{what}_{number}.pb"
        if path.is_file():
            values[one.name] = _value(path.read_bytes(), one.type)
    return values


def _value(data: bytes, kind: TypeProto) -> Value:
    """Read a value as onnx.backend.test.runner.Runner does."""
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    array = numpy_helper.to_array(onnx.TensorProto.FromString(data))
    return array.astype(object) if array.dtype.kind in "SU" else array


def difference(expected: Value, got: Value) -> str:
    """Return how an answer differs from the right one by the suite's measure; "" if it does not.

    As onnx.backend.test.runner.Runner.assert_similar_outputs does.
    """
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return "is not such a sequence"
        pairs = zip(expected, got, strict=True)
        return next((said for one, other in pairs if (said := difference(one, other))), "")
    if expected is None or got is None:
        return "" if expected is got else "is there and should not be, or the other way round"
    return _difference(np.asarray(expected), np.asarray(got))


def _difference(expected: NDArray[Any], got: NDArray[Any]) -> str:
    if got.shape != expected.shape:
        return f"has shape {list(got.shape)} instead of {list(expected.shape)}"
    if got.dtype != expected.dtype:
        return f"is {got.dtype} instead of {expected.dtype}"
    if expected.dtype == object:
        return "" if got.tolist() == expected.tolist() else "has other texts"
    try:
        np.testing.assert_allclose(_wide(got), _wide(expected), rtol=RTOL, atol=ATOL)
    except AssertionError as error:
        return "has other values: " + " ".join(str(error).split())[:200]
    return ""


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    """Convert numbers of ml_dtypes to a type that numpy can compare."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float64)
