"""The run order of a graph's nodes, and the nodes that no output needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from cohort.model_file.graphs import Graph, Node


def names_used(node: Node) -> Iterator[str]:
    """Yield the inputs of a node, and the names that its subgraphs use."""
    yield from filter(None, node.inputs)
    for graph in node.graphs.values():
        yield from (one.name for one in graph.outputs)
        for inner in graph.nodes:
            yield from names_used(inner)


def run_order(nodes: Sequence[Node]) -> Sequence[int]:
    """Return the indexes of a main graph's nodes, each after the nodes whose outputs it uses.

    If the nodes form a cycle, their order is kept; no runtime opens such a model.
    """
    makers = {name: at for at, node in enumerate(nodes) for name in node.outputs if name}
    before = {
        at: {makers[name] for name in names_used(node) if name in makers}
        for at, node in enumerate(nodes)
    }
    if all(max(needed, default=-1) < at for at, needed in before.items()):
        return range(len(nodes))
    try:
        return [*TopologicalSorter(before).static_order()]
    except CycleError:
        return range(len(nodes))


def unneeded_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes that no output of a graph needs. ONNX Runtime runs them anyway."""
    needed = {one.name for one in graph.outputs}
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            yield node
        else:
            needed.update(names_used(node))
