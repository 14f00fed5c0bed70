"""Prove that each row of a model's outputs depends only on the same row of its inputs.

`prove_rows` follows rows through the nodes of a graph, without running it, and returns a
`RowVerdict`:

- proven, with the row axis of each input and output;
- refuted, with the node that combines rows;
- unknown, with the node that is not understood, for example an operator without a rule.

`walk` tracks the symbolic shape and the row axis of each tensor. `rules` defines the effect of each
operator on rows. Most rules map the axes of inputs to axes of results (`axes`). Sizes are
polynomials (`sizes`); `evaluation` and `arithmetic` compute shapes with them.
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
