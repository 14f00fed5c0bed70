"""The node tests of ONNX, each as a model whose inputs have rows along one axis or another."""

from __future__ import annotations

import itertools
import random
from collections import Counter
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

MAX_COMBINATIONS, ASSIGNMENTS = 3000, 9

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


def node_cases(tests: int | None = None) -> Iterator[RowCase]:
    """Each node test with some assignments of axes: the likely ones, and others at random.

    tests: How many tests of the same operators to take; default: all.
    """
    taken: Counter[tuple[str, ...]] = Counter()
    for case in load_model_tests(kind="node"):
        if any(one in case.name for one in LEFT_OUT):
            continue
        model = onnx.load(f"{case.model_dir}/model.onnx")
        operators = tuple(node.op_type for node in model.graph.node)
        if taken[operators] == tests:
            continue
        taken[operators] += 1
        arrays = _inputs(str(case.model_dir), model)
        if arrays:
            yield from variants(case.name, model, arrays)


def _inputs(folder: str, model: onnx.ModelProto) -> dict[str, Array]:
    """The inputs of the first data set; empty where one is not a tensor of numpy."""
    found = {}
    for place, value in enumerate(model.graph.input):
        if value.type.WhichOneof("value") != "tensor_type":
            return {}
        tensor = onnx.TensorProto()
        path = Path(folder) / "test_data_set_0" / f"input_{place}.pb"
        tensor.ParseFromString(path.read_bytes())
        found[value.name] = numpy_helper.to_array(tensor)
    return found


def variants(name: str, model: onnx.ModelProto, arrays: Mapping[str, Array]) -> Iterator[RowCase]:
    choices = [[None, *range(min(array.ndim, 3))] for array in arrays.values()]
    every = [
        one
        for one in itertools.islice(itertools.product(*choices), MAX_COMBINATIONS)
        if any(axis is not None for axis in one)
    ]
    chosen = random.Random(name)
    plain = [one for one in every if all(axis in (0, None) for axis in one)]
    all_rows = [
        one for one in plain if one.count(None) == sum(a.ndim == 0 for a in arrays.values())
    ]
    picked = [*all_rows[:1], *chosen.sample(plain, min(3, len(plain)))]
    picked += chosen.sample(every, min(ASSIGNMENTS - len(picked), len(every)))
    for axes in dict.fromkeys(picked):
        assignment = dict(zip(arrays, axes, strict=True))
        rows = {key: array for key, array in arrays.items() if assignment[key] is not None}
        if all(array.shape[assignment[key] or 0] for key, array in rows.items()):
            draw = partial(_rows_like, rows, assignment)
            yield RowCase(name, _open(model, arrays, assignment), assignment, draw)


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
