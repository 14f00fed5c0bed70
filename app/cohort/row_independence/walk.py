"""Follow rows through the nodes of a graph."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

import cohort.row_independence.rules  # noqa: F401  fills the table of rules
from cohort.errors import quoted, shortened
from cohort.model_file.constants import AttributeReference, AttributeValue, ConstantTensor
from cohort.model_file.graphs import Graph, ModelGraphs, Node
from cohort.row_independence.cost import KNOWN_DOMAINS, OF_SHAPES, deciding, depends_on_values
from cohort.row_independence.evaluation import evaluate
from cohort.row_independence.kernels import kernel_of
from cohort.row_independence.operation import OPERATOR_RULES, Operation
from cohort.row_independence.order import unneeded_nodes
from cohort.row_independence.rules.control import SEQUENCES
from cohort.row_independence.rules.tables import TAKES_PADDING
from cohort.row_independence.sizes import NO_BOUND, Poly, Size, Symbols
from cohort.row_independence.tensors import (
    MAX_FOLLOWED,
    NO_NODE,
    Elements,
    Followed,
    Loss,
    Lost,
    NodePlace,
    Tensor,
    TensorSequence,
    Unproven,
    constant,
    unknown,
)

MAX_INVENTED = 64
"""The elements of a constant that get symbols of their own where they are not known."""

MAX_NAME = 256
"""Letters of a node's name."""


RULE_FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a rule raises on a node that it does not expect, such as one with an attribute missing."""

IN_VAIN = "no output needs it, but it runs, and may fail for some numbers of rows"

NOT_COMPUTED = Lost(0, Loss.UNKNOWN, "", "a value is used before it is computed", by_values=True)


class GraphTooLarge(Exception):
    """A graph takes too long to follow."""


class Limit:
    """How much all walks over one model may take.

    nodes: Nodes looked at, those of functions at each call, those of loops at each turn.
    seconds: Of computing, so that what else the machine does changes no verdict.
    """

    def __init__(self, nodes: int, seconds: float) -> None:
        self._nodes, self._until = nodes, time.thread_time() + seconds

    def take(self) -> None:
        """Count a node. Raises GraphTooLarge."""
        self._nodes -= 1
        if self._nodes < 0 or (self._nodes % 64 == 0 and time.thread_time() > self._until):
            raise GraphTooLarge


class Walk:
    """One pass over a model, for one guess of where the rows of its inputs are.

    order: The index in the file of each node of the main graph.

    symbols: The sizes.
    cuts: Sizes that are another one, cut to a limit, with the other.
    dependence: Which operator's cost depends on what is in the inputs; "" for none.
    kernels: What computes with rows, as `kernel_of` says, each with its first node, in words.
    """

    def __init__(self, model: ModelGraphs, limit: Limit, order: Sequence[int]) -> None:
        self.symbols = Symbols()
        self.kernels: dict[str, str] = {}
        self.cuts: dict[Poly, Size] = {}
        self.dependence = ""
        self._functions = model.functions
        self._opsets = _opsets(model.main.opsets)
        self._limit, self._order = limit, order
        self._scopes: list[dict[str, Followed]] = []
        self._number, self._words = 0, ""
        self._path: list[int] = []
        self._node_now: Node | None = None
        self._invented: dict[int, tuple[Tensor, Elements]] = {}

    def graph(self, graph: Graph, given: Sequence[Followed]) -> list[Followed]:
        """The outputs of a graph, with the values of its inputs. Names outside are visible."""
        scope: dict[str, Followed] = {n: known_tensor(one) for n, one in graph.constants.items()}
        for node in graph.nodes:  # what is used before it is computed is not known
            scope.update(dict.fromkeys(node.outputs, NOT_COMPUTED))
        scope.update(zip((one.name for one in graph.inputs), given, strict=False))
        self._scopes.append(scope)
        outer = self._node_now
        step = [] if outer is None else [_index_of(graph, outer)]
        self._path += [*step, 0]
        try:
            for self._path[-1], self._node_now in enumerate(graph.nodes):
                node = self._node_now
                found = self._node(node)
                self._scopes[-1].update(zip(node.outputs, found, strict=False))
            return self._unless_ended(graph, [self._look_up(one.name) for one in graph.outputs])
        finally:
            self._scopes.pop()
            self._node_now = outer
            del self._path[-len(step) - 1 :]

    def invent_elements(self, one: Tensor) -> Elements | None:
        """A symbol for each element of a small constant, the same ones each time."""
        shape = [size for size in one.shape if isinstance(size, int)]
        count = prod(shape)
        if len(shape) < one.rank or not 0 < count <= MAX_INVENTED:
            return None
        if id(one) not in self._invented:
            made = np.empty(count, dtype=object)
            made[:] = [self.symbols.new(NO_BOUND, whole=False) for _ in range(count)]
            self._invented[id(one)] = one, made.reshape(shape)
        return self._invented[id(one)][1]

    def lost(self, level: Loss, reason: str) -> Lost:
        """A value whose rows are lost at the present node."""
        return Lost(self._number, level, self._words, reason, place=self._place())

    def _place(self) -> NodePlace:
        if self._node_now is None:
            return NO_NODE
        name = shortened(self._node_now.name, MAX_NAME)
        first, *inside = self._path
        return NodePlace((self._order[first], *inside), name)

    def note_dependence(self, reason: str) -> None:
        """Keep the first reason why the cost of runs depends on what is in the inputs."""
        self.dependence = self.dependence or reason

    def _look_up(self, name: str) -> Followed:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return NOT_COMPUTED

    def _unless_ended(self, graph: Graph, outputs: list[Followed]) -> list[Followed]:
        """The outputs, or that they are lost: a node that none of them needs may end the run."""
        lost = [
            value._replace(level=Loss.UNKNOWN, reason=f"{IN_VAIN}: {value.reason}")
            for node in unneeded_nodes(graph)
            for value in map(self._look_up, node.outputs)
            if isinstance(value, Lost)
        ]
        if not lost:
            return outputs
        return [
            one if isinstance(one, Lost) else min(lost)._replace(by_values=depends_on_values(one))
            for one in outputs
        ]

    def _node(self, node: Node) -> list[Followed]:
        self._limit.take()
        self._number += 1
        domain, name, _ = node.function
        key = ("" if domain == "ai.onnx" else domain, name)
        own = next((one for one in node.outputs if one), "")
        self._words = f"{'.'.join(filter(None, key))} {quoted(node.name or own)}"
        values = [self._look_up(one) if one else None for one in node.inputs]
        function = self._functions.get(node.function)
        if function is not None and key[0] not in KNOWN_DOMAINS:
            return self._call(function, node, values)
        self.note_dependence(deciding(key, node, values, redefined=function is not None))
        number, words = self._number, self._words
        try:
            found = self._apply(key, node, values)
        except Unproven as error:
            lost = Lost(number, error.level, words, error.reason, place=self._place())
            found = [lost] * len(node.outputs)
        except RULE_FAILURES as error:
            reason = f"its rule does not expect it ({type(error).__name__}: {error})"
            lost = Lost(number, Loss.UNKNOWN, words, reason, place=self._place())
            found = [lost] * len(node.outputs)
        by_values = key[1] not in OF_SHAPES and any(map(depends_on_values, values))
        return [_marked(one, by_values) for one in found]

    def _apply(
        self, key: tuple[str, str], node: Node, values: Sequence[Followed | None]
    ) -> list[Followed]:
        lost = [one for one in values if isinstance(one, Lost)]
        if lost:
            for graph in node.graphs.values():  # what its nodes cost is asked all the same
                self.graph(graph, [lost[0]._replace(by_values=True)] * len(graph.inputs))
            return [min(lost)._replace(by_values=False)] * len(node.outputs)
        rule = OPERATOR_RULES.get(key)
        if rule is None or node.function in self._functions:
            unknown("there is no rule for this operator")
        tensors = [one if isinstance(one, Tensor) else None for one in values]
        if (
            any(one is not None and one.padding is not None for one in tensors)
            and key[1] not in TAKES_PADDING
        ):
            raise Unproven(
                Loss.MIXES, "it reads texts that are padded to the longest row of the run"
            )
        if any(isinstance(one, TensorSequence) for one in values) and key[1] not in SEQUENCES:
            unknown("it takes a sequence")
        words = self._words
        operation = Operation(
            key[1],
            self._opsets.get(key[0], 1),
            tensors,
            _attributes(node),
            len(node.outputs),
            self,
            values,
        )
        results = evaluate(operation) or rule(operation)
        found = [results] if isinstance(results, Tensor | Lost | TensorSequence) else list(results)
        for one in found:
            if isinstance(one, Tensor) and not one.holds(self.symbols.rows):
                unknown("its rule breaks a promise")
        if kernel := kernel_of(key, operation):
            self.kernels.setdefault(kernel, words)
        more = len(node.outputs) - len(found)
        return [*found, *[self.lost(Loss.UNKNOWN, "it has more outputs than are known")] * more]

    def _call(self, body: Graph, node: Node, values: Sequence[Followed | None]) -> list[Followed]:
        """Follow the body of a function, with what its caller gives."""
        given = {**body.defaults, **node.attributes}
        bound = [_bind(one, given) for one in body.nodes]
        left_out = {
            one.name for one, value in zip(body.inputs, values, strict=False) if value is None
        }
        left_out |= {one.name for one in body.inputs[len(values) :]}
        nodes = [
            one._replace(inputs=["" if name in left_out else name for name in one.inputs])
            for one in bound
        ]
        scopes, opsets = self._scopes, self._opsets
        self._scopes = []
        self._opsets = {**opsets, **_opsets(body.opsets)}
        try:
            present = [
                (one, value)
                for one, value in zip(body.inputs, values, strict=False)
                if value is not None
            ]
            inner = body._replace(nodes=nodes, inputs=[one for one, _ in present])
            return self.graph(inner, [value for _, value in present])
        finally:
            self._scopes, self._opsets = scopes, opsets


def known_tensor(one: ConstantTensor) -> Tensor:
    """A constant of the file, with its elements where it is small."""
    if one.elements is None or len(one.elements) > MAX_FOLLOWED:
        return Tensor(one.shape, one.dtype)
    elements = np.empty(len(one.elements), dtype=object)
    elements[:] = one.elements
    return replace(
        constant(elements, one.dtype), shape=one.shape, elements=elements.reshape(one.shape)
    )


def _opsets(opsets: Mapping[str, int]) -> dict[str, int]:
    return {"" if domain == "ai.onnx" else domain: version for domain, version in opsets.items()}


def _index_of(graph: Graph, node: Node) -> int:
    """Which of a node's graphs it is: one of its attributes, or the body of a function behind."""
    graphs = list(node.graphs.values())
    return next((at for at, one in enumerate(graphs) if one is graph), len(graphs))


def _attributes(node: Node) -> dict[str, object]:
    held = {
        name: known_tensor(one) if isinstance(one, ConstantTensor) else one
        for name, one in node.attributes.items()
        if one is not None
    }
    return {**held, **node.graphs}


def _bind(node: Node, given: Mapping[str, AttributeValue]) -> Node:
    """A node of a function with what its caller gives for its attributes."""
    if not node.graphs and not any(
        isinstance(one, AttributeReference) for one in node.attributes.values()
    ):
        return node
    attributes = {
        name: given.get(one.name) if isinstance(one, AttributeReference) else one
        for name, one in node.attributes.items()
    }
    graphs = {
        name: graph._replace(nodes=[_bind(one, given) for one in graph.nodes])
        for name, graph in node.graphs.items()
    }
    return node._replace(attributes=attributes, graphs=graphs)


def _marked(value: Followed, by_values: bool) -> Followed:
    if not by_values or depends_on_values(value):
        return value
    if isinstance(value, TensorSequence):
        return TensorSequence(_marked(one, by_values) for one in value)  # type: ignore[misc]
    if isinstance(value, Lost):
        return value._replace(by_values=True)
    return replace(value, by_values=True)
