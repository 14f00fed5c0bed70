"""Whether each row of a model's outputs depends on the same row of its inputs only.

`prove_rows` follows rows through the nodes of a graph, without running it, and gives a
`RowVerdict`: proven, with the axis of the rows of each input and output; or refuted, with the node
that combines rows; or unknown, with the operator that has no rule. Of each tensor, `walk` knows its
shape, with symbols in it, and where its rows are. What an operator does to rows is said in `rules`,
for most by which axes of a result are those of an input (`axes`). Sizes are polynomials (`sizes`),
and shape arithmetic is carried out with these (`evaluation`, `arithmetic`).
"""

from __future__ import annotations

from cohort.row_independence.by_request import prove_for_requests
from cohort.row_independence.digest import rules_digest
from cohort.row_independence.kernels import ALIGNMENT
from cohort.row_independence.tensors import NodePlace
from cohort.row_independence.verdict import (
    NOT_READ,
    OutputRows,
    RequestKind,
    RowKind,
    RowVerdict,
    prove_rows,
)

__all__ = [
    "ALIGNMENT",
    "NOT_READ",
    "NodePlace",
    "OutputRows",
    "RequestKind",
    "RowKind",
    "RowVerdict",
    "prove_for_requests",
    "prove_rows",
    "rules_digest",
]
