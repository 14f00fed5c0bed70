"""What the graphs of a model use: tables that inputs are places in, and operators."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Set

from cohort.model_file.graphs import Graph, ModelGraphs, Node, called_functions

PASSING_ON = frozenset(
    {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice"}
)
"""Operators whose outputs hold values of their first input."""

MOST_PASSED_ON = 1000
"""Looked at for one input."""


def table_sizes(graph: Graph) -> dict[str, int]:
    """How many entries the table has that an input looks things up in, by the input's name.

    The smallest one where there are several; inputs that look up nothing are left out.
    """
    users: defaultdict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for name in node.inputs:
            users[name].append(node)
    found = {one.name: _smallest_table(one.name, users, graph) for one in graph.inputs}
    return {name: size for name, size in found.items() if size}


def _smallest_table(name: str, users: Mapping[str, list[Node]], graph: Graph) -> int:
    """The entries of the smallest table; 0: none was found."""
    sizes: list[int] = []
    seen, waiting = {name}, deque([name])
    while waiting and len(seen) < MOST_PASSED_ON:
        value = waiting.popleft()
        for node in users.get(value, ()):
            operator = node.function[1]
            if operator == "Gather" and node.inputs[1:2] == [value]:
                axis, table = node.attributes.get("axis", 0), graph.constants.get(node.inputs[0])
                if table is not None and isinstance(axis, int) and _has_axis(table.shape, axis):
                    sizes.append(table.shape[axis])
            elif operator in PASSING_ON and node.inputs[0] == value:
                waiting += [one for one in node.outputs if one not in seen]
                seen.update(node.outputs)
    return min(sizes, default=0)


def _has_axis(shape: tuple[int, ...], axis: int) -> bool:
    return -len(shape) <= axis < len(shape)


def uses_any(model: ModelGraphs, operators: Set[str]) -> bool:
    """Whether a node of the model, those in subgraphs and functions included, is one of these."""
    graphs = [model.main, *model.functions.values()]
    return any(name in operators for one in graphs for _, name, _ in called_functions(one.nodes))
