"""Read a model's graph, operators, weights and metadata from its file."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from pathlib import Path

import onnx
from onnx import TensorProto
from onnx.external_data_helper import load_external_data_for_tensor

from cohort.errors import LoadFailed, quoted
from cohort.session.failures import outside_file
from cohort.tensors import DATATYPES
from cohort_prepare.overview.costs import subgraphs
from cohort_prepare.overview.parts import (
    MAX_LISTED,
    GraphSummary,
    ModelParameters,
    ModelValue,
    OperatorUse,
    ValueShape,
    Weight,
    WeightType,
    clip,
)

LARGEST = 10
"""Number of listed weights."""

SMALL_ELEMENTS = 1024
"""Weights up to this size may define a shape, such as a list of dimensions."""

_NAMES = {row.onnx: row.name for row in DATATYPES}
_BITS = {row.onnx: row.bits for row in DATATYPES}
_ONNX_DOMAINS = {"ai.onnx": ""}


def read_light(path: Path) -> tuple[onnx.ModelProto, ModelParameters]:
    """Read a model without its larger weights; return it and a description of all weights.

    External data must have been checked to be in the model's folder. Raises LoadFailed if a weight
    is missing there, OSError, and errors of protobuf.
    """
    model = onnx.load(path, load_external_data=False)
    weights = _Weights()
    for graph in (model.graph, *_bodies(model)):
        for tensor in _tensors(graph):
            weights.add(tensor, "inside")
            _lighten(tensor, path.parent)
        for sparse in graph.sparse_initializer if isinstance(graph, onnx.GraphProto) else ():
            weights.add_sparse(sparse)
    return model, weights.parameters()


def _bodies(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield all subgraphs, and the bodies of functions with theirs."""
    yield from _inside(model.graph)
    for function in model.functions:
        yield function
        yield from _inside(function)


def _inside(body: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto]:
    for node in body.node:
        for graph in subgraphs(node):
            yield graph
            yield from _inside(graph)


def _tensors(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[TensorProto]:
    """Yield the weights of one graph: initializers and constants."""
    if isinstance(graph, onnx.GraphProto):
        yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t


def _lighten(tensor: TensorProto, folder: Path) -> None:
    """Remove the weight's values unless they are few."""
    external = tensor.data_location == TensorProto.EXTERNAL
    if external:
        _check_inside(tensor, folder)
    if math.prod(tensor.dims) <= SMALL_ELEMENTS:
        if external:
            try:
                load_external_data_for_tensor(tensor, str(folder))
            except ValueError as error:
                raise LoadFailed(f"its external data is invalid: {error}") from error
            tensor.ClearField("data_location")
        return
    for field_ in ("raw_data", "external_data", "data_location", "string_data"):
        tensor.ClearField(field_)
    for numbers in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
        tensor.ClearField(numbers)


def _check_inside(tensor: TensorProto, folder: Path) -> None:
    """Raise LoadFailed if the weight's range is outside its file."""
    location = {one.key: one.value for one in tensor.external_data}
    size = (folder / location.get("location", "")).stat().st_size
    try:
        offset = int(location.get("offset") or 0)
        length = int(location.get("length") or 0)
    except ValueError:
        raise LoadFailed(f"the offset of {quoted(tensor.name)} is not a number") from None
    least = max(length, 1 if math.prod(tensor.dims) else 0)
    if offset < 0 or length < 0 or offset + least > size:
        raise LoadFailed(outside_file(clip(tensor.name), offset, size))


@dataclass
class _Weights:
    """Accumulates weights."""

    by_type: defaultdict[str, list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0, 0])
    )
    found: list[Weight] = field(default_factory=list)
    external: Counter[str] = field(default_factory=Counter)
    sparse: int = 0

    def add(self, tensor: TensorProto, kept: str) -> None:
        elements, size = math.prod(tensor.dims), _bytes(tensor)
        if tensor.data_location == TensorProto.EXTERNAL:
            kept = "outside"
            places = {one.key: one.value for one in tensor.external_data}
            self.external[clip(places.get("location", ""))] += size
        kind = datatype_name(tensor.data_type)
        for place, number in enumerate((1, elements, size)):
            self.by_type[kind][place] += number
        weight = Weight(clip(tensor.name), kind, list(tensor.dims), size, kept)
        self.found.append(weight)
        if len(self.found) > MAX_LISTED:
            self.found = self._largest()

    def add_sparse(self, sparse: onnx.SparseTensorProto) -> None:
        self.sparse += 1
        self.add(sparse.values, "sparse")

    def parameters(self) -> ModelParameters:
        types = [WeightType(name, *counts) for name, counts in self.by_type.items()]
        types.sort(key=lambda one: -one.bytes)
        return ModelParameters(
            elements=sum(one.elements for one in types),
            bytes=sum(one.bytes for one in types),
            datatypes=types,
            largest=self._largest(),
            sparse=self.sparse,
            external=dict(self.external.most_common(MAX_LISTED)),
        )

    def _largest(self) -> list[Weight]:
        return nlargest(LARGEST, self.found, key=lambda one: one.bytes)


def _bytes(tensor: TensorProto) -> int:
    if tensor.data_type == TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    return -(-math.prod(tensor.dims) * _BITS.get(tensor.data_type, 8) // 8)


def datatype_name(number: int) -> str:
    """Return the Open Inference name of an ONNX datatype, or ONNX's name."""
    if number in _NAMES:
        return _NAMES[number]
    known = TensorProto.DataType.values()
    return TensorProto.DataType.Name(number) if number in known else f"type {number}"


def summarize_graph(model: onnx.ModelProto) -> GraphSummary:
    """Count nodes, subgraphs and functions."""
    subgraph_nodes = subgraph_count = deepest = 0
    waiting = [(model.graph, 0)]
    while waiting:
        graph, depth = waiting.pop()
        deepest = max(deepest, depth)
        for node in graph.node:
            for inner in subgraphs(node):
                subgraph_nodes += len(inner.node)
                subgraph_count += 1
                waiting.append((inner, depth + 1))
    return GraphSummary(
        name=clip(model.graph.name),
        nodes=len(model.graph.node),
        subgraph_nodes=subgraph_nodes,
        subgraphs=subgraph_count,
        depth=deepest,
        functions={
            clip(f"{one.domain}::{one.name}"): len(one.node)
            for one in islice(model.functions, MAX_LISTED)
        },
    )


def read_inputs(graph: onnx.GraphProto) -> list[ModelValue]:
    """Return the inputs, those with a default last."""
    defaults = {one.name for one in graph.initializer}
    values = [_value(one, one.name in defaults) for one in graph.input]
    return sorted(values, key=lambda one: one.optional)[:MAX_LISTED]


def read_outputs(graph: onnx.GraphProto) -> list[ModelValue]:
    """Return the outputs in order."""
    return [_value(one, False) for one in graph.output[:MAX_LISTED]]


def _value(value: onnx.ValueInfoProto, optional: bool) -> ModelValue:
    kind, shape = describe_type(value.type)
    return ModelValue(clip(value.name), kind, shape, optional)


def describe_type(type_: onnx.TypeProto) -> tuple[str, ValueShape]:
    """Describe a type, and return the shape of a tensor."""
    kind = type_.WhichOneof("value")
    if kind not in {"tensor_type", "sparse_tensor_type"}:
        return (kind or "unknown").removesuffix("_type"), None
    tensor = getattr(type_, kind)
    name = datatype_name(tensor.elem_type)
    name = name if kind == "tensor_type" else f"sparse {name}"
    if not tensor.HasField("shape"):
        return name, None
    return name, [
        one.dim_value if one.HasField("dim_value") else clip(one.dim_param) or None
        for one in tensor.shape.dim
    ]


def count_operators(model: onnx.ModelProto) -> list[OperatorUse]:
    """Count nodes by operator, most frequent first."""
    opsets = opset_versions(model)
    used: Counter[tuple[str, str]] = Counter()
    for graph in (model.graph, *_bodies(model)):
        for node in graph.node:
            domain = _ONNX_DOMAINS.get(node.domain, node.domain)
            used[clip(domain), clip(node.op_type)] += 1
    return [
        OperatorUse(domain, operator, count, _since(operator, domain, opsets))
        for (domain, operator), count in used.most_common(MAX_LISTED)
    ]


def opset_versions(model: onnx.ModelProto) -> dict[str, int]:
    """Return the opset of each domain that the model imports."""
    return {
        clip(_ONNX_DOMAINS.get(one.domain, one.domain)): one.version
        for one in islice(model.opset_import, MAX_LISTED)
    }


def _since(operator: str, domain: str, opsets: Mapping[str, int]) -> int:
    try:
        schema = onnx.defs.get_schema(operator, opsets.get(domain, 0), domain)
    except onnx.defs.SchemaError:
        return 0
    return int(schema.since_version)
