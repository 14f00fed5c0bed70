"""Find the tables that a model's inputs index, and the operators that a model uses."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Set

from cohort.model_file.graphs import Graph, ModelGraphs, Node, called_functions

PASSING_ON = frozenset(
    {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice"}
)
"""Operators whose outputs contain values of their first input."""

MAX_PASSED_ON = 1000
"""Maximum number of values that are followed for one input."""


def table_sizes(graph: Graph) -> dict[str, int]:
    """Return the number of entries of the table that each input indexes, by input name.

    If an input indexes several tables, the smallest counts. Inputs without a table are omitted.
    """
    users: defaultdict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for name in node.inputs:
            users[name].append(node)
    found = {one.name: _smallest_table(one.name, users, graph) for one in graph.inputs}
    return {name: size for name, size in found.items() if size}


def _smallest_table(name: str, users: Mapping[str, list[Node]], graph: Graph) -> int:
    """Return the number of entries of the smallest table; 0 if no table was found."""
    sizes: list[int] = []
    seen, waiting = {name}, deque([name])
    while waiting and len(seen) < MAX_PASSED_ON:
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
    """Return True if any node, also in subgraphs and functions, uses one of these operators."""
    graphs = [model.main, *model.functions.values()]
    return any(name in operators for one in graphs for _, name, _ in called_functions(one.nodes))
