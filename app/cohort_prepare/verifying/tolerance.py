"""Allowed differences between a model and its source, by the datatype of the computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cohort.tensors import TensorSpec
from cohort_prepare.evaluating.graph_hints import GraphHints, Precision

FLOOR = 0.05
"""A row's allowance is at least that of a row with this share of the batch's largest value."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Criterion for agreement.

    computation: Datatype that it was chosen for: "FP32", "trees in FP32", "INT8", …
    share: Floats may differ by this share of their row's largest number.
    rows_off: Share of rows that may differ more.
    by_decision: True if rows of scores need the same argmax instead, except for ties.
    """

    computation: str
    share: float
    rows_off: float = 0.0
    by_decision: bool = False

    @property
    def text(self) -> str:
        """Description of the criterion."""
        share = f"{self.share:g} of the row's largest value"
        if self.by_decision:
            share = f"scores have the same argmax, other values are within {share}"
        rows = f", in all but {self.rows_off:.0%} of the rows" if self.rows_off else ""
        return f"{self.computation}: {share}{rows}"


ALLOWED: Mapping[Precision, Allowed] = {
    "quantized": Allowed("INT8 or less", 0.1, rows_off=0.05, by_decision=True),
    "bfloat16": Allowed("BF16", 0.05),
    "float16": Allowed("FP16", 0.01),
    "trees": Allowed("trees in FP32", 1e-4, rows_off=0.01),
    "float32": Allowed("FP32", 1e-4),
}
"""Trees allow rows off, since thresholds are rounded: a row may take another branch."""


def allowed_for(
    hints: GraphHints, outputs: Sequence[TensorSpec] = (), *, share: float | None = None
) -> Allowed:
    """Choose the criterion for the least precise datatype of the model's computation.

    share: From the user; default None: from the datatype.
    """
    precision = hints.precision
    if precision in {"trees", "float32"} and any(one.datatype == "FP16" for one in outputs):
        precision = "float16"
    chosen = ALLOWED[precision]
    return chosen if share is None else replace(chosen, share=share)
