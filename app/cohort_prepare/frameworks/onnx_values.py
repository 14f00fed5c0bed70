"""Names of values in an exported model, and removal of exporters' debug information."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx

MAX_INLINE_BYTES = 3 << 29
"""Larger weights go to a separate file: a protobuf is limited to 2 GiB, and may grow."""


def rename_values(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Rename inputs, outputs or inner values everywhere, from old name to new.

    An inner value that already has one of the new names is renamed as well.
    """
    taken = {name for graph in graphs(model.graph) for name in _values(graph)}
    changed = {old: new for old, new in names.items() if old != new}
    for new in [*changed.values()]:
        if new in taken and new not in changed:
            changed[new] = _free(new, taken)
    for graph in graphs(model.graph):
        for one in _named(graph):
            one.name = changed.get(one.name, one.name)
        for node in graph.node:
            node.input[:] = [changed.get(name, name) for name in node.input]
            node.output[:] = [changed.get(name, name) for name in node.output]


def strip_traces(model: onnx.ModelProto) -> None:
    """Remove the source files and lines of nodes.

    They are not needed, differ between folders, and would be published with the model.
    """
    for graph in graphs(model.graph):
        graph.doc_string = ""
        del graph.metadata_props[:]
        for part in [*graph.node, *_named(graph)]:
            part.doc_string = ""
            del part.metadata_props[:]
    for function in model.functions:
        function.doc_string = ""
        del function.metadata_props[:]
        for node in function.node:
            node.doc_string = ""
            del node.metadata_props[:]


def name_rows(model: onnx.ModelProto, *, outputs_too: bool = False) -> None:
    """Give the variable first dimension of all inputs, the rows, the same name.

    outputs_too: True to rename the outputs' variable first dimensions as well, for exporters that
        name each one differently.
    """
    inputs = [*_open_rows(model.graph.input)]
    rows = {one.dim_param for one in inputs} - {""}
    for graph in graphs(model.graph):
        for value in [*graph.input, *graph.output, *graph.value_info]:
            for one in value.type.tensor_type.shape.dim:
                if one.dim_param in rows:
                    one.dim_param = ROWS
    for one in [*inputs, *(_open_rows(model.graph.output) if outputs_too else ())]:
        one.dim_param = ROWS


def _open_rows(values: Iterable[onnx.ValueInfoProto]) -> Iterator[Any]:
    for value in values:
        dimensions = value.type.tensor_type.shape.dim
        if dimensions and not dimensions[0].HasField("dim_value"):
            yield dimensions[0]


ROWS = "rows"
"""Default name of the first dimension."""


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and its subgraphs."""
    waiting = [graph]
    while waiting:
        one = waiting.pop()
        yield one
        for node in one.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(attribute.g)
                waiting += attribute.graphs


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and its subgraphs."""
    for one in graphs(graph):
        yield from one.node


def _named(graph: onnx.GraphProto) -> Iterator[Any]:
    """Yield everything with a name except nodes."""
    yield from [*graph.input, *graph.output, *graph.value_info]
    yield from graph.initializer


def _values(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (one.name for one in graph.input)
    yield from (one.name for one in graph.initializer)
    for node in graph.node:
        yield from node.output


def _free(name: str, taken: set[str]) -> str:
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"
