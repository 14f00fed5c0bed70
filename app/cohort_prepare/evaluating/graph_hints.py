"""Find hints for realistic input values in a model's graph."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from pathlib import Path
from typing import Literal

import onnx

from cohort_prepare.failures import Misused
from cohort_prepare.frameworks.onnx_values import all_nodes

COMPARING = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Clip"})
"""Operators whose constants are thresholds."""

FEW_ELEMENTS = 64
"""Maximum size of a constant in which thresholds are looked for."""

MAX_THRESHOLDS = 1000

HANDLING_MISSING = frozenset({"Imputer", "IsNaN"})

Precision = Literal["quantized", "bfloat16", "float16", "trees", "float32"]

QUANTIZING = (
    *("QLinear", "QuantizeLinear", "DequantizeLinear", "DynamicQuantize"),
    *("MatMulInteger", "ConvInteger", "MatMulNBits"),
)
"""Prefixes of operators on quantized numbers."""

TREES = frozenset({"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"})

PASSED_ON = frozenset(
    {
        *("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Concat"),
        *("Slice", "Split", "Gather", "ArrayFeatureExtractor", "Expand", "StringNormalizer"),
    }
)
"""Operators whose outputs have values of their input."""

MAX_NODES = 1000
"""Maximum number of nodes to follow for one input."""

MAX_WORDS = 1000


@dataclass(frozen=True, slots=True)
class InputHint:
    """Hints for one input.

    below: Integers are indices into a table of this many rows; default None: unknown.
    words: Texts that the model knows; default none.
    """

    below: int | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphHints:
    """Hints from the graph.

    inputs: By input name; empty hints if nothing is known.
    operators: Types of all nodes, including subgraphs and functions.
    datatypes: ONNX's datatypes of weights and of casts.
    fixed_rows: Length of the first dimension, if it is the same for all inputs; else None.
    thresholds: Numbers at which the model decides, in trees and comparisons.
    takes_missing: True if the model handles NaN explicitly.
    """

    inputs: dict[str, InputHint] = field(default_factory=dict)
    operators: frozenset[str] = frozenset()
    datatypes: frozenset[int] = frozenset()
    fixed_rows: int | None = None
    thresholds: tuple[float, ...] = ()
    takes_missing: bool = False

    @property
    def precision(self) -> Precision:
        """The least precise arithmetic in the graph."""
        if any(name.startswith(QUANTIZING) for name in self.operators):
            return "quantized"
        if onnx.TensorProto.BFLOAT16 in self.datatypes:
            return "bfloat16"
        if onnx.TensorProto.FLOAT16 in self.datatypes:
            return "float16"
        return "trees" if self.operators & TREES else "float32"


def read_hints(path: Path) -> GraphHints:
    """Read hints from an ONNX file without its external data. Raises Misused."""
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # raised by protobuf
        raise Misused(f"{path} is not an ONNX model, or is truncated: {error}") from error
    nodes = list(all_nodes(model.graph))
    nodes += [node for function in model.functions for node in function.node]
    datatypes = {one.data_type for one in model.graph.initializer}
    casts = {one.i for node in nodes if node.op_type == "Cast" for one in node.attribute}
    return GraphHints(
        _input_hints(model.graph),
        frozenset(node.op_type for node in nodes),
        frozenset(datatypes | casts),
        _fixed_rows(model.graph),
        _thresholds(nodes, model.graph),
        any(map(_takes_missing, nodes)),
    )


def _thresholds(nodes: Sequence[onnx.NodeProto], graph: onnx.GraphProto) -> tuple[float, ...]:
    constants = {one.name: one for one in graph.initializer}
    for node in nodes:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    found: set[float] = set()
    for node in nodes:
        named = {one.name: one for one in node.attribute}
        if node.op_type.startswith("TreeEnsemble"):
            found.update(named["nodes_values"].floats if "nodes_values" in named else ())
            if "nodes_splits" in named:
                found.update(_numbers(named["nodes_splits"].t))
        elif node.op_type in COMPARING:
            for name in node.input:
                if name in constants and prod(constants[name].dims) <= FEW_ELEMENTS:
                    found.update(_numbers(constants[name]))
    finite = sorted(one for one in found if isfinite(one))
    step = -(-len(finite) // MAX_THRESHOLDS) or 1
    return tuple(finite[::step])


def _numbers(tensor: onnx.TensorProto) -> list[float]:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return []
    array = onnx.numpy_helper.to_array(tensor)
    return array.reshape(-1).astype(float).tolist() if array.dtype.kind in "fiu" else []


def _takes_missing(node: onnx.NodeProto) -> bool:
    sides = ("nodes_missing_value_tracks_true",)
    return node.op_type in HANDLING_MISSING or any(
        one.name in sides and any(one.ints) for one in node.attribute
    )


def _required(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    defaults = {one.name for one in graph.initializer}
    return [one for one in graph.input if one.name not in defaults]


def _fixed_rows(graph: onnx.GraphProto) -> int | None:
    lengths: set[int] = set()
    for one in _required(graph):
        dimensions = one.type.tensor_type.shape.dim
        lengths.add(dimensions[0].dim_value if dimensions else 0)  # 0: open
    return lengths.pop() if len(lengths) == 1 and 0 not in lengths else None


def _input_hints(graph: onnx.GraphProto) -> dict[str, InputHint]:
    users: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            users[name].append(node)
    tables = {one.name: list(one.dims) for one in graph.initializer}
    return {one.name: _hint(one.name, users, tables) for one in _required(graph)}


def _hint(
    name: str, users: dict[str, list[onnx.NodeProto]], tables: dict[str, list[int]]
) -> InputHint:
    below: list[int] = []
    words: dict[str, None] = {}
    seen, waiting = {name}, deque([name])
    while waiting and len(seen) < MAX_NODES:
        value = waiting.popleft()
        for node in users[value]:
            if node.op_type == "Gather" and node.input[1] == value:
                axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
                table = tables.get(node.input[0], [])
                below += [table[axis]] if -len(table) <= axis < len(table) else []
                continue
            for one in node.attribute:
                if one.name in {"keys_strings", "cats_strings", "pool_strings"}:
                    words |= dict.fromkeys(
                        text.decode(errors="replace") for text in one.strings[:MAX_WORDS]
                    )
            if node.op_type in PASSED_ON and len(words) < MAX_WORDS:
                waiting += [one for one in node.output if one not in seen]
                seen.update(node.output)
    return InputHint(min(below, default=None), tuple(words)[:MAX_WORDS])
