"""The nodes of a model: its main graph and its functions, read from the protobuf.

Weights are left out, and so is what is long in attributes; see `cohort.model_file.constants`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from cohort.errors import LoadFailed
from cohort.model_file.constants import (
    AttributeValue,
    ConstantTensor,
    read_attribute_value,
    read_sparse,
    read_tensor,
)
from cohort.model_file.protobuf import (
    DeclaredShape,
    MessageBytes,
    decode_text,
    fields,
    read_opset,
    read_value_info,
)

MAX_NODES = 1_000_000
"""More nodes than any known model has."""

FunctionName = tuple[str, str, str]
"""Domain, name and overload."""


class GraphInput(NamedTuple):
    """An input or an output of a graph or a function.

    kind: The field of its type in TypeProto: TENSOR, another, or 0 where none is declared.
    dtype, shape: Of a tensor.
    """

    name: str
    kind: int = 0
    dtype: int = 0
    shape: DeclaredShape = None


class Graph(NamedTuple):
    """A graph, or the body of a function.

    constants: Its initializers, by name.
    opsets: The operator sets of the main graph or of a function, by domain.
    defaults: The attributes of a function that its callers may leave out.
    """

    nodes: list[Node]
    inputs: list[GraphInput]
    outputs: list[GraphInput]
    constants: dict[str, ConstantTensor]
    opsets: dict[str, int]
    defaults: dict[str, AttributeValue]
    name: str = ""


class Node(NamedTuple):
    """A node: what it calls, its values, its attributes, and the graphs among these."""

    function: FunctionName
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, AttributeValue]
    graphs: dict[str, Graph]


class ModelGraphs(NamedTuple):
    """The main graph, and the functions of the model, each after those that it calls."""

    main: Graph
    functions: Mapping[FunctionName, Graph]

    def count_nodes(self) -> int:
        """The nodes once each call of a function is replaced by the function's nodes.

        As ONNX Runtime does: 31 functions that each call the one before twice are 2^31 nodes.
        """
        counts: dict[FunctionName, int] = {}
        for name, body in self.functions.items():
            counts[name] = min(_count(body, counts), _MANY)
        return _count(self.main, counts)


_MANY = 10**18  # a chain of calls could make numbers of any length


def _count(graph: Graph, counts: Mapping[FunctionName, int]) -> int:
    return sum(
        counts.get(node.function, 1) + sum(_count(inner, counts) for inner in node.graphs.values())
        for node in graph.nodes
    )


def too_many(nodes: str, allowed: int) -> LoadFailed:
    """What to say of a model with more nodes than are allowed."""
    return LoadFailed(f"it has {nodes}; at most {allowed:,} are allowed (COHORT_MAX_NODES)")


def empty_graph() -> Graph:
    """A graph with nothing in it."""
    return Graph([], [], [], {}, {}, {})


class GraphReader:
    """Reads messages, and counts nodes.

    max_nodes: The most nodes; with more, LoadFailed is raised.
    external: Where weights lie outside the file, as the file words it.
    """

    def __init__(self, max_nodes: int) -> None:
        self.external: set[str] = set()
        self._max_nodes = max_nodes
        self._nodes = 0

    def graph(self, message: MessageBytes, graph: Graph) -> Graph:
        """A graph with what a GraphProto has besides."""
        for number, value in fields(message):
            if isinstance(value, int):
                continue
            if number == 1:
                graph.nodes.append(self.node(value))
            elif number == 2:
                graph = graph._replace(name=decode_text(value) or graph.name)
            elif number == 5:
                graph.constants.update([read_tensor(value, self.external)])
            elif number == 11:
                graph.inputs.append(GraphInput(*read_value_info(value)))
            elif number == 12:
                graph.outputs.append(GraphInput(*read_value_info(value)))
            elif number == 15:
                graph.constants.update([read_sparse(value, self.external)])
        return graph

    def function(self, message: MessageBytes) -> tuple[FunctionName, Graph]:
        """A FunctionProto: its name and its body."""
        texts = {1: "", 10: "", 13: ""}
        body = empty_graph()
        for number, value in fields(message):
            if isinstance(value, int):
                continue
            if number in texts:
                texts[number] = decode_text(value)
            elif number == 4:
                body.inputs.append(GraphInput(decode_text(value)))
            elif number == 5:
                body.outputs.append(GraphInput(decode_text(value)))
            elif number == 7:
                body.nodes.append(self.node(value))
            elif number == 9:
                body.opsets.update([read_opset(value)])
            elif number == 11:
                name, held, _ = read_attribute_value(value, self.external)
                body.defaults[name] = held
        return (texts[10], texts[1], texts[13]), body

    def node(self, message: MessageBytes) -> Node:
        """A NodeProto. Raises LoadFailed where it is one too many."""
        self._nodes += 1
        if self._nodes > self._max_nodes:
            raise too_many(f"more than {self._max_nodes:,} nodes", self._max_nodes)
        texts = {3: "", 4: "", 7: "", 8: ""}
        inputs: list[str] = []
        outputs: list[str] = []
        attributes: dict[str, AttributeValue] = {}
        graphs: dict[str, Graph] = {}
        for number, value in fields(message):
            if isinstance(value, int):
                continue
            if number == 1:
                inputs.append(decode_text(value))
            elif number == 2:
                outputs.append(decode_text(value))
            elif number == 5:
                name, held, inner = read_attribute_value(value, self.external)
                attributes[name] = held
                for graph in inner:  # those of a list get its name with their place
                    key = name if name not in graphs else f"{name}[{len(graphs)}]"
                    graphs[key] = self.graph(graph, empty_graph())
            elif number in texts:
                texts[number] = decode_text(value)
        function = (texts[7], texts[4], texts[8])
        return Node(function, texts[3], inputs, outputs, attributes, graphs)


def in_order(functions: Mapping[FunctionName, Graph]) -> dict[FunctionName, Graph]:
    """The functions, each after those that it calls. Raises LoadFailed where there is no such."""
    calls = {
        name: [called for called in called_functions(body.nodes) if called in functions]
        for name, body in functions.items()
    }
    try:
        return {name: functions[name] for name in TopologicalSorter(calls).static_order()}
    except CycleError:
        raise LoadFailed("its functions call each other in a circle") from None


def called_functions(nodes: Sequence[Node]) -> Iterator[FunctionName]:
    """What these nodes call, and those of the graphs in them."""
    for node in nodes:
        yield node.function
        for graph in node.graphs.values():
            yield from called_functions(graph.nodes)
