"""In which order the nodes of a graph run, and which of them for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from cohort.model_file.graphs import Graph, Node


def names_used(node: Node) -> Iterator[str]:
    """The inputs of a node, and the names that graphs inside it use."""
    yield from filter(None, node.inputs)
    for graph in node.graphs.values():
        yield from (one.name for one in graph.outputs)
        for inner in graph.nodes:
            yield from names_used(inner)


def run_order(nodes: Sequence[Node]) -> Sequence[int]:
    """The indexes of the nodes of a main graph, each after those whose outputs it uses.

    As they are where they need each other in a circle, which no runtime opens.
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
    """The nodes that no output of a graph needs. ONNX Runtime runs them all the same."""
    needed = {one.name for one in graph.outputs}
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            yield node
        else:
            needed.update(names_used(node))
