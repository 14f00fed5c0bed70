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
"""Maximum number of unknown elements of a constant that become symbols."""

MAX_NAME = 256
"""Maximum length of a node's name, in characters."""


RULE_FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that a rule raises for an unexpected node, for example without an attribute."""

IN_VAIN = "no output needs it, but it runs, and may fail for some numbers of rows"

NOT_COMPUTED = Lost(0, Loss.UNKNOWN, "", "a value is used before it is computed", by_values=True)


class GraphTooLarge(Exception):
    """A graph takes too long to follow."""


class Limit:
    """The limits for all walks over one model together.

    nodes: Visited nodes; nodes of functions count at each call, nodes of loops at each iteration.
    seconds: CPU time, so that the load of the machine does not change the verdict.
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

    symbols: The symbols of the analysis.
    cuts: Maps each size that was cut to a limit to the original size.
    dependence: The first reason why the cost of a run depends on input values; "" if it does not.
    kernels: The kernels that compute with rows (see `kernel_of`), each with a description of its
        first node.
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
        """Return the outputs of a graph for these input values. Outer names are visible."""
        scope: dict[str, Followed] = {n: known_tensor(one) for n, one in graph.constants.items()}
        for node in graph.nodes:  # a value used before it is computed is unknown
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
        """Return a symbol for each element of a small constant, the same ones each time."""
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
        """Return a value whose rows are lost at the current node."""
        return Lost(self._number, level, self._words, reason, place=self._place())

    def _place(self) -> NodePlace:
        if self._node_now is None:
            return NO_NODE
        name = shortened(self._node_now.name, MAX_NAME)
        first, *inside = self._path
        return NodePlace((self._order[first], *inside), name)

    def note_dependence(self, reason: str) -> None:
        """Record the reason why the cost of runs depends on input values; the first one is kept."""
        self.dependence = self.dependence or reason

    def _look_up(self, name: str) -> Followed:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return NOT_COMPUTED

    def _unless_ended(self, graph: Graph, outputs: list[Followed]) -> list[Followed]:
        """Return the outputs; they are lost if a node that no output needs may fail the run."""
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
            for graph in node.graphs.values():  # the cost of its nodes is still needed
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
        """Follow the body of a function with its caller's attributes and inputs."""
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
    """Return a constant of the file, with its elements if it is small."""
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
    """Return the index of a graph in a node; a called function's body comes after its graphs."""
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
    """Return a function's node with the caller's values for its attribute references."""
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
