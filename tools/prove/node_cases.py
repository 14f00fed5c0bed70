"""The node tests of ONNX, each as a model whose inputs have rows along one axis or another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from tools.prove.experiment import Array, Row, RowCase

LEFT_OUT = (
    "FLOAT8",
    "FLOAT4",
    "INT4",
    "UINT4",
    "INT2",
    "UINT2",
    "float8",
    "int4",
    "float4",
    "int2",
)
"""Types that numpy does not have."""

OTHERS = 3
"""Assignments of axes at random."""

ROWS = (2, 3, 4, 5, 3, 2)
"""Rows of each trial."""

SCALES = (1.0, 0.5, 3.0, -1.0, 10.0)


def _rows_like(
    arrays: Mapping[str, Array], axes: Mapping[str, int | None], trial: int
) -> list[Row]:
    """Rows like a test's own: some of its rows, scaled and shifted."""
    random = np.random.default_rng(trial)
    return [
        {
            name: _vary(np.take(array, [random.integers(array.shape[axis])], axis), array, random)
            for name, array in arrays.items()
            if (axis := axes[name]) is not None
        }
        for _ in range(ROWS[trial % len(ROWS)])
    ]


def _vary(row: Array, array: Array, random: np.random.Generator) -> Array:
    if row.dtype.kind == "f":
        noise = random.standard_normal(row.shape) * random.choice([0.0, 0.1, 1.0])
        return np.asarray(row * random.choice(SCALES) + noise).astype(row.dtype)
    if array.size and random.random() < 0.7:
        return np.asarray(random.choice(array.ravel(), row.shape)).astype(row.dtype)
    return row


def node_cases() -> Iterator[RowCase]:
    """Each node test with rows along axes of its inputs."""
    for case in load_model_tests(kind="node"):
        if any(one in case.name for one in LEFT_OUT):
            continue
        model = onnx.load(f"{case.model_dir}/model.onnx")
        arrays = _inputs(str(case.model_dir), model)
        if arrays:
            yield from variants(case.name, model, arrays)


def _inputs(folder: str, model: onnx.ModelProto) -> dict[str, Array]:
    """Return the inputs of the first data set; empty where one is not a tensor of numpy."""
    found = {}
    for place, value in enumerate(model.graph.input):
        if value.type.WhichOneof("value") != "tensor_type":
            return {}
        tensor = onnx.TensorProto()
        path = Path(folder) / "test_data_set_0" / f"input_{place}.pb"
        tensor.ParseFromString(path.read_bytes())
        found[value.name] = numpy_helper.to_array(tensor)
    return found


def variants(
    name: str,
    model: onnx.ModelProto,
    arrays: Mapping[str, Array],
    along: Sequence[int | None] | None = None,
) -> Iterator[RowCase]:
    """A model with rows along each axis of each input, of it alone and of all, and some others.

    along: The axis of each input in another case; an empty list for none.
    """
    choices = [range(array.ndim) for array in arrays.values()]
    alone = [
        tuple(axis if at == place else None for at in range(len(choices)))
        for place, axes in enumerate(choices)
        for axis in axes
    ]
    of_all = [
        tuple(axis if axis in axes else None for axes in choices)
        for axis in range(max(map(len, choices), default=0))
    ]
    chosen = random.Random(name)
    others = [tuple(chosen.choice([None, *axes]) for axes in choices) for _ in range(OTHERS)]
    given = [tuple(along)] if along else []
    first, *more = model.graph.node
    operator = None if more else (first.domain, first.op_type)
    for axes in dict.fromkeys([*given, *alone, *of_all, *others]):
        assignment = dict(zip(arrays, axes, strict=True))
        rows = {key: array for key, array in arrays.items() if assignment[key] is not None}
        if rows and all(array.shape[assignment[key] or 0] for key, array in rows.items()):
            draw = partial(_rows_like, rows, assignment)
            yield RowCase(name, _open(model, arrays, assignment), assignment, draw, operator)


def _open(
    model: onnx.ModelProto, arrays: Mapping[str, Array], axes: Mapping[str, int | None]
) -> onnx.ModelProto:
    """The model with any number of rows along the axes, and the other inputs as initializers."""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    graph = opened.graph
    inputs: Sequence[Any] = list(model.graph.input)
    del graph.input[:], graph.value_info[:]
    for value in inputs:
        axis = axes[value.name]
        if axis is None:
            graph.initializer.append(numpy_helper.from_array(arrays[value.name], value.name))
            continue
        kept = graph.input.add()
        kept.CopyFrom(value)
        kept.type.tensor_type.shape.dim[axis].Clear()
        kept.type.tensor_type.shape.dim[axis].dim_param = "rows"
    for output in graph.output:
        if output.type.WhichOneof("value") == "tensor_type":
            output.type.tensor_type.ClearField("shape")
    return opened
