"""Each rule against ONNX Runtime: its operator with rows along one axis or another."""

from __future__ import annotations

import pytest

from tools.prove.__main__ import try_case, try_graphs
from tools.prove.contrib_cases import contrib_cases
from tools.prove.node_cases import node_cases
from tools.prove.random_graphs import random_graph

TESTS = 2
"""Node tests that are tried of each operator; `make prove` tries all."""


def test_no_proof_is_contradicted() -> None:
    """Rows together give what rows alone give, wherever that is proven."""
    proven, wrong = 0, []
    for case in (*node_cases(TESTS), *contrib_cases()):
        kind, _, contradiction = try_case(case, proven_only=True)
        proven += kind == "proven"
        wrong += [contradiction] if contradiction else []
    assert wrong == []
    assert proven > 100


def test_random_graphs_contradict_no_proof() -> None:
    """A sample of those of `make prove`, some of which are proven."""
    counts, wrong = try_graphs(1, 60, proven_only=True)
    assert wrong == []
    assert sum(count for (kind, _), count in counts.items() if kind == "proven") > 5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_graphs_are_the_same_each_time(seed: int) -> None:
    """So that a contradiction can be looked at."""
    first, second = random_graph(seed), random_graph(seed)
    same = first.model().SerializeToString() == second.model().SerializeToString()
    assert same
    assert first.nodes
