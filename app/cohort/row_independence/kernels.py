"""Describe the kernel of a node, to the extent that its rounding may depend on other rows."""

from __future__ import annotations

from cohort.row_independence.operation import Operation, OperatorName
from cohort.row_independence.sizes import Poly, Size
from cohort.row_independence.tensors import RowAxis, Tensor

ALIGNMENT = 64
"""Bytes of the longest SIMD vectors; ONNX Runtime aligns its buffers to it."""

ROUNDED = {1: ("FP32", 4), 10: ("FP16", 2), 11: ("FP64", 8), 16: ("BF16", 2)}
"""Names and byte sizes of floating-point datatypes, by ONNX's codes."""


def kernel_of(key: OperatorName, operation: Operation) -> str:
    """Return the operator, with other factors that affect its rounding in parentheses.

    An example is "ReduceSum (inner axes, unaligned)". Returns "" if no input has rows.
    """
    given = [one for one in operation.inputs if one is not None and one.rows]
    if not given:
        return ""
    traits = []
    if key[1].startswith("Reduce"):
        rank = operation.first().rank
        axes = sorted(operation.axes(1, rank) or ())
        if axes != list(range(rank - len(axes), rank)):
            traits.append("inner axes")
    if (datatype := ROUNDED.get(given[0].dtype, ("FP32", 4))[0]) != "FP32":
        traits.append(datatype)
    if any(one.rows and one.rows.axis for one in given):
        traits.append("rows along another axis")
    if not all(_is_aligned(one) for one in given):
        traits.append("unaligned")
    name = ".".join(filter(None, key))
    return f"{name} ({', '.join(traits)})" if traits else name


def _is_aligned(one: Tensor) -> bool:
    """Return True if each row starts at a vector boundary, provided that the first row does."""
    rows = one.rows or RowAxis(0)
    size: Size = rows.inner
    for other in one.shape[rows.axis + 1 :]:
        size = size * other
    unit = ALIGNMENT // ROUNDED.get(one.dtype, ("", 1))[1]
    factors = size.terms.values() if isinstance(size, Poly) else [size]
    return all(factor % unit == 0 for factor in factors)
