"""Each rule against ONNX Runtime: its operator with rows along each axis of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from cohort.row_independence.operation import MICROSOFT, ML, OPERATOR_RULES, OperatorName
from cohort.row_independence.rules.signatures import ENTRYWISE
from tools.prove.__main__ import INDEPENDENT, NOT_RUN, TRIALS, try_case, try_graphs
from tools.prove.contrib_cases import contrib_cases
from tools.prove.graph_cases import graph_cases
from tools.prove.node_cases import node_cases
from tools.prove.random_graphs import random_graph

NEVER_PROVEN = {
    ("", "Bernoulli"): "it draws random numbers",
    ("", "Multinomial"): "it draws random numbers",
    ("", "RandomNormal"): "it draws random numbers",
    ("", "RandomNormalLike"): "it draws random numbers",
    ("", "RandomUniform"): "it draws random numbers",
    ("", "RandomUniformLike"): "it draws random numbers",
    (MICROSOFT, "DynamicQuantizeLSTM"): "it scales all rows together",
    (MICROSOFT, "DynamicQuantizeMatMul"): "it scales all rows together",
}
"""Operators whose rule only gives the reason why rows are lost."""

NOT_ON_ALL_PROCESSORS = {(MICROSOFT, "GroupNorm")} | {
    one for one in OPERATOR_RULES if one[0] == "com.microsoft.nchwc"
}
"""Operators that ONNX Runtime may not have here."""

NEVER_REFUSED = {
    *(("", name) for name in ENTRYWISE.split()),
    *(("", name) for name in ("Cast", "CastLike", "Clip", "Identity")),
    *((MICROSOFT, name) for name in ("Gelu", "QuickGelu", "QLinearLeakyRelu", "QLinearSigmoid")),
    *((ML, name) for name in ("Binarizer", "CategoryMapper", "LabelEncoder", "OneHotEncoder")),
    *(("", name) for name in ("Transpose", "SequenceConstruct")),  # they move whole entries
    *(("", name) for name in ("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix")),
    *(("", name) for name in ("Constant", "Range")),  # as the windows: rows are not plain numbers
}
"""Operators that combine no entries, along whatever axis rows are."""


class Tried(NamedTuple):
    """A case: the operator that it is about, the verdict, and what became of it in runs."""

    operator: OperatorName | None
    kind: str
    outcome: str
    contradiction: str


@pytest.fixture(scope="module")
def tried() -> Sequence[Tried]:
    """All cases, those that are proven run in ONNX Runtime."""
    cases = (*node_cases(), *contrib_cases(), *graph_cases())
    return [Tried(case.operator, *try_case(case, TRIALS, proven_only=True)) for case in cases]


def _operators(tried: Sequence[Tried], kinds: Sequence[str], *outcomes: str) -> set[OperatorName]:
    return {
        one.operator
        for one in tried
        if one.operator and one.kind in kinds and one.outcome in outcomes
    }


def test_no_proof_is_contradicted(tried: Sequence[Tried]) -> None:
    """Rows together give what rows alone give, wherever that is proven."""
    assert [one.contradiction for one in tried if one.contradiction] == []


def test_each_rule_proves_something(tried: Sequence[Tried]) -> None:
    """It proves its operator with rows along some axis, and ONNX Runtime agrees."""
    shown = _operators(tried, ("proven", "shared"), INDEPENDENT)
    told = _operators(tried, ("proven", "shared"), NOT_RUN) & NOT_ON_ALL_PROCESSORS
    assert OPERATOR_RULES.keys() - shown - told == NEVER_PROVEN.keys()


def test_each_rule_refuses_something(tried: Sequence[Tried]) -> None:
    """It refuses its operator with rows along another axis, if it combines any."""
    refused = _operators(tried, ("refuted", "unknown", "not deterministic"), NOT_RUN)
    assert OPERATOR_RULES.keys() - refused == NEVER_REFUSED


def test_random_graphs_contradict_no_proof() -> None:
    """A sample of those of `make prove`, some of which are proven."""
    counts, wrong = try_graphs(1, 60, proven_only=True)
    assert wrong == []
    assert sum(count for (kind, _), count in counts.items() if kind == "proven") > 5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_graphs_are_the_same_each_time(seed: int) -> None:
    """Contradictions can be reproduced."""
    first, second = random_graph(seed), random_graph(seed)
    same = first.model().SerializeToString() == second.model().SerializeToString()
    assert same
    assert first.nodes
