"""Outputs that are sequences of tensors: each tensor is served as a separate output.

scikit-learn's exporter ends a MultiOutputClassifier with the operator SequenceConstruct. It puts
the probabilities of each target into one sequence, a type that no request protocol supports. So the
model is opened with one output for each tensor, `NAME_0`, `NAME_1`, instead of the sequence.

https://onnx.ai/onnx/operators/onnx__SequenceConstruct.html
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from cohort.model_file.graphs import Graph, GraphInput, Node
from cohort.model_file.protobuf import TENSOR, MessageBytes, fields, read_value_info
from cohort.model_file.writing import write_field, write_key, write_parts, write_varint

Parts: TypeAlias = Mapping[str, Sequence[tuple[str, str]]]
"""The tensors of each sequence, by its name: the name of the new output, and of the tensor."""

MAX_PARTS = 256
"""Maximum number of tensors of a sequence; a sequence with more is not served."""

_CONSTRUCT = frozenset({("", "SequenceConstruct"), ("ai.onnx", "SequenceConstruct")})


def find_parts(nodes: Sequence[Node], outputs: Collection[str], taken: Collection[str]) -> Parts:
    """Return the tensors of those `outputs` that a SequenceConstruct makes.

    taken: The names of the graph's inputs, outputs and weights. A sequence is left out if the name
        of one of its parts is already in use.
    """
    made = [
        (node.outputs[0], node.inputs)
        for node in nodes
        if node.function[:2] in _CONSTRUCT and node.outputs and node.outputs[0] in outputs
    ]
    if not made:
        return {}
    names = {*taken, *chain.from_iterable(node.outputs for node in nodes)}
    found: dict[str, list[tuple[str, str]]] = {}
    for output, values in made:
        parts = [(f"{output}_{number}", value) for number, value in enumerate(values)]
        if 0 < len(parts) <= MAX_PARTS and names.isdisjoint(name for name, _ in parts):
            found[output] = parts
            names.update(name for name, _ in parts)
    return found


def names_of_ends(graph: Graph) -> set[str]:
    """Return the argument `taken` of `find_parts` for a graph."""
    return {*(one.name for one in (*graph.inputs, *graph.outputs)), *graph.constants}


def graph_with_parts(graph: Graph, parts: Parts) -> Graph:
    """Return the graph of the model that `with_parts` returns."""
    if not parts:
        return graph
    nodes = [
        Node(("", "Identity", ""), "", [value], [name], {}, {})
        for name, value in chain.from_iterable(parts.values())
    ]
    outputs = [
        shown
        for one in graph.outputs
        for shown in (
            [GraphInput(name, TENSOR, one.dtype) for name, _ in parts[one.name]]
            if one.name in parts
            else [one]
        )
    ]
    return graph._replace(nodes=[*graph.nodes, *nodes], outputs=outputs)


def with_parts(model: bytes, parts: Parts) -> bytes:
    """Return a model with an output for each tensor instead of the sequences.

    The runtime infers the types of the outputs. Raises ValueError if `model` is not the protobuf of
    a model.
    """
    written: list[bytes] = []
    last = sum(number == 7 for number, _ in fields(memoryview(model)))
    for number, value in fields(memoryview(model)):
        if number != 7 or isinstance(value, int):
            written += write_parts(number, value)
            continue
        last -= 1
        graph = [part for field in _graph(value, parts, nodes=not last) for part in field]
        written += [write_key(7), write_varint(sum(map(len, graph))), *graph]
    return b"".join(written)


def _graph(graph: MessageBytes, parts: Parts, *, nodes: bool) -> Iterator[Sequence[bytes]]:
    for number, value in fields(graph):
        shown = None
        if number == 12 and not isinstance(value, int):
            shown = parts.get(read_value_info(value)[0])
        if shown is None:
            yield write_parts(number, value)
        else:
            for name, _ in shown:
                yield write_parts(12, write_field(1, name.encode()))
    if nodes:
        for name, shows in chain.from_iterable(parts.values()):
            texts = {1: shows, 2: name, 4: "Identity"}
            yield write_parts(
                1, b"".join(write_field(key, text.encode()) for key, text in texts.items())
            )
