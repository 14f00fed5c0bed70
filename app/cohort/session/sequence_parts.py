"""Sequences of tensors as outputs, of which each tensor is served as an output of its own.

scikit-learn's exporter ends a MultiOutputClassifier in the operator SequenceConstruct, which puts
the probabilities of each target into one sequence: a type that no protocol of requests carries. So
the model is opened with an output more for each of its tensors, `NAME_0`, `NAME_1`, in its place.

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
"""The tensors of each sequence, by its name: the output that shows one, and what that shows."""

MAX_PARTS = 256
"""The tensors of a sequence that are served; one with more is left out."""

_CONSTRUCT = frozenset({("", "SequenceConstruct"), ("ai.onnx", "SequenceConstruct")})


def find_parts(nodes: Sequence[Node], outputs: Collection[str], taken: Collection[str]) -> Parts:
    """The tensors of those of `outputs` that a SequenceConstruct makes.

    taken: The names of the graph's inputs, outputs and weights. A sequence one of whose parts would
        have the name of another value is left out.
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
    """What `find_parts` takes for taken, of a graph that was read."""
    return {*(one.name for one in (*graph.inputs, *graph.outputs)), *graph.constants}


def graph_with_parts(graph: Graph, parts: Parts) -> Graph:
    """The graph that `with_parts` makes."""
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
    """A model with an output for each tensor in place of the sequences.

    The runtime infers their types. Raises ValueError where it is not the protobuf of a model.
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
