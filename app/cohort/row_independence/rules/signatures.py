"""Signatures of operators with fixed axes, one line each; see `cohort.row_independence.axes`."""

from __future__ import annotations

from collections.abc import Mapping

from cohort.row_independence.axes import apply_signature
from cohort.row_independence.operation import MICROSOFT, OPERATOR_RULES, Operation
from cohort.row_independence.tensors import FLOAT, Tensor

ENTRIES = "A* -> A*"

ENTRYWISE = """
Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu
HardSigmoid HardSwish IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal RegexFullMatch Relu Round
Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
"""

SIGNATURES: Mapping[str, Mapping[str, str]] = {
    "": {
        **dict.fromkeys(ENTRYWISE.split(), ENTRIES),
        "Clip": "A*; =; = -> A*",
        "Det": "A* m n -> A*",
        "EyeLike": "m n -> m n",
        "Trilu": "A* m n; = -> A* m n",
        "InstanceNormalization": "N c *; =; = -> N c *",
        "GroupNormalization": "N c *; =; = -> N c *",
        "LRN": "N c A* -> N c A*",
        "STFT": "N s *; =; =; = -> N ? ? 2",
        "HannWindow": "= -> ?",
        "HammingWindow": "= -> ?",
        "BlackmanWindow": "= -> ?",
        "MelWeightMatrix": "=; =; =; =; = -> ? ?",
    },
    MICROSOFT: {
        "GroupNorm": "N *; =; = -> N *",
        "QLinearLeakyRelu": "A*; =; =; =; = -> A*",
        "QLinearSigmoid": "A*; =; =; =; = -> A*",
    },
}


def _by_signature(operation: Operation) -> list[Tensor]:
    text = next(table[operation.name] for table in SIGNATURES.values() if operation.name in table)
    return apply_signature(operation, text, dtypes=[FLOAT] if text[0] == "=" else ())


OPERATOR_RULES.update(
    {(domain, name): _by_signature for domain, table in SIGNATURES.items() for name in table}
)
