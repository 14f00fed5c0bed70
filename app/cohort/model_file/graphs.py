"""Read the nodes of a model's main graph and functions from the protobuf.

Weights and long attributes are omitted; see `cohort.model_file.constants`.
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
"""Maximum number of nodes, more than any known model has."""

FunctionName = tuple[str, str, str]
"""Domain, name and overload."""


class GraphInput(NamedTuple):
    """An input or an output of a graph or a function.

    kind: The field number of its type in TypeProto, such as TENSOR; 0 if no type is declared.
    dtype, shape: The element type and the shape, for a tensor.
    """

    name: str
    kind: int = 0
    dtype: int = 0
    shape: DeclaredShape = None


class Graph(NamedTuple):
    """A graph, or the body of a function.

    constants: The initializers, by name.
    opsets: Versions of the operator sets of the main graph or of a function, by domain.
    defaults: Default values of a function's attributes.
    """

    nodes: list[Node]
    inputs: list[GraphInput]
    outputs: list[GraphInput]
    constants: dict[str, ConstantTensor]
    opsets: dict[str, int]
    defaults: dict[str, AttributeValue]
    name: str = ""


class Node(NamedTuple):
    """A node: the operator or function it calls, its values, attributes and subgraphs."""

    function: FunctionName
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, AttributeValue]
    graphs: dict[str, Graph]


class ModelGraphs(NamedTuple):
    """The main graph and the functions of a model; each function follows those that it calls."""

    main: Graph
    functions: Mapping[FunctionName, Graph]

    def count_nodes(self) -> int:
        """Count the nodes after each function call is replaced by the function's nodes.

        ONNX Runtime inlines in this way. 31 functions that each call the previous one twice give
        2^31 nodes.
        """
        counts: dict[FunctionName, int] = {}
        for name, body in self.functions.items():
            counts[name] = min(_count(body, counts), _MANY)
        return _count(self.main, counts)


_MANY = 10**18  # cap: a chain of calls could give arbitrarily large numbers


def _count(graph: Graph, counts: Mapping[FunctionName, int]) -> int:
    return sum(
        counts.get(node.function, 1) + sum(_count(inner, counts) for inner in node.graphs.values())
        for node in graph.nodes
    )


def too_many(nodes: str, allowed: int) -> LoadFailed:
    """Return the error for a model with more nodes than are allowed."""
    return LoadFailed(f"it has {nodes}; at most {allowed:,} are allowed (COHORT_MAX_NODES)")


def empty_graph() -> Graph:
    """Return a graph without nodes, inputs or outputs."""
    return Graph([], [], [], {}, {}, {})


class GraphReader:
    """Reads graphs from messages, and counts their nodes.

    max_nodes: Maximum number of nodes; beyond it, LoadFailed is raised.
    external: Locations of weights outside the file, as written in the file.
    """

    def __init__(self, max_nodes: int) -> None:
        self.external: set[str] = set()
        self._max_nodes = max_nodes
        self._nodes = 0

    def graph(self, message: MessageBytes, graph: Graph) -> Graph:
        """Add the contents of a GraphProto to `graph`, and return the result."""
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
        """Read a FunctionProto: its name and its body."""
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
        """Read a NodeProto. Raises LoadFailed if it exceeds the maximum number of nodes."""
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
                for graph in inner:  # graphs of a list get an index after its name
                    key = name if name not in graphs else f"{name}[{len(graphs)}]"
                    graphs[key] = self.graph(graph, empty_graph())
            elif number in texts:
                texts[number] = decode_text(value)
        function = (texts[7], texts[4], texts[8])
        return Node(function, texts[3], inputs, outputs, attributes, graphs)


def in_order(functions: Mapping[FunctionName, Graph]) -> dict[FunctionName, Graph]:
    """Sort functions so that each follows those that it calls. Raises LoadFailed for a cycle."""
    calls = {
        name: [called for called in called_functions(body.nodes) if called in functions]
        for name, body in functions.items()
    }
    try:
        return {name: functions[name] for name in TopologicalSorter(calls).static_order()}
    except CycleError:
        raise LoadFailed("its functions call each other in a circle") from None


def called_functions(nodes: Sequence[Node]) -> Iterator[FunctionName]:
    """Yield the operators and functions that these nodes and their subgraphs call."""
    for node in nodes:
        yield node.function
        for graph in node.graphs.values():
            yield from called_functions(graph.nodes)
