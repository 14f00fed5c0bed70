"""Each rule against ONNX Runtime: its operator with rows along one axis or another."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import pytest

from tools.prove.__main__ import try_graphs, try_node
from tools.prove.contrib_cases import contrib_cases
from tools.prove.node_cases import node_cases
from tools.prove.random_graphs import random_graph

TESTS = 2
"""Node tests that are tried of each operator; `make prove` tries all."""


@cache
def tried() -> dict[str, list[tuple[str, str, str]]]:
    """Verdict, outcome and contradiction of each case, by operator."""
    found: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for case in (*node_cases(TESTS), *contrib_cases()):
        result = try_node(case)
        for operator in set(case.operators):
            found[operator].append(result)
    return found


def test_no_proof_is_contradicted() -> None:
    """Rows together give what rows alone give, wherever that is proven."""
    assert [one[2] for results in tried().values() for one in results if one[2]] == []


def test_random_graphs_contradict_no_proof() -> None:
    """A sample of those of `make prove`, some of which are proven."""
    counts, wrong = try_graphs(1, 60)
    assert wrong == []
    assert sum(count for (kind, _), count in counts.items() if kind == "proven") > 5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_graphs_are_the_same_each_time(seed: int) -> None:
    """So that a contradiction can be looked at."""
    first, second = random_graph(seed), random_graph(seed)
    same = first.model().SerializeToString() == second.model().SerializeToString()
    assert same
    assert first.nodes
