"""How far a model may be from its source, by the datatype that it computes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cohort.tensors import TensorSpec
from cohort_prepare.evaluating.graph_hints import GraphHints, Precision

FLOOR = 0.05
"""A row's allowance is at least that of a row with this share of the batch's largest value."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What counts as agreement.

    computation: What it was chosen by: "FP32", "trees in FP32", "INT8", …
    share: Floats may differ by this share of the largest number in their row.
    rows_off: The share of rows that may differ all the same.
    by_decision: Whether rows of scores are held to their argmax instead, ties left out.
    """

    computation: str
    share: float
    rows_off: float = 0.0
    by_decision: bool = False

    @property
    def text(self) -> str:
        """The criterion in words."""
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
"""Of trees, thresholds are rounded: a row may take another branch."""


def allowed_for(
    hints: GraphHints, outputs: Sequence[TensorSpec] = (), *, share: float | None = None
) -> Allowed:
    """Choose by what the model computes in; the coarsest counts.

    share: As the user asks; default None: as the datatype needs.
    """
    precision = hints.precision
    if precision in {"trees", "float32"} and any(one.datatype == "FP16" for one in outputs):
        precision = "float16"
    chosen = ALLOWED[precision]
    return chosen if share is None else replace(chosen, share=share)
