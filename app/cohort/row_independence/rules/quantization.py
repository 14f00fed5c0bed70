"""Rules of operators that quantize values to small integers and back."""

from __future__ import annotations

from cohort.row_independence.axes import any_axes, follow
from cohort.row_independence.operation import MICROSOFT, Operation, rule
from cohort.row_independence.rules.elementwise import combined
from cohort.row_independence.rules.parts import joined
from cohort.row_independence.tensors import Tensor, mixes, unknown

UINT8 = 2


@rule("QuantizeLinear", "DequantizeLinear")
@rule("QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)
def _quantize(operation: Operation) -> Tensor:
    """Accept scales for all values, for each entry along an axis, or for blocks of entries."""
    one, scale, zero = operation.required(0), operation.required(1), operation.input(2)
    blocks = operation.attribute("block_size", 0)
    dtype = scale.dtype
    if operation.name == "QuantizeLinear":
        dtype = operation.attribute("output_dtype", 0) or (UINT8 if zero is None else zero.dtype)
    labels = any_axes(one)
    given = [(one, labels)]
    for each in (scale, zero):
        if each is None or each.shape in ((), (1,)):
            operation.same(1, 2, what="its scale")
        elif each.rank == 1 and one.rank and not blocks:
            axis = operation.axis(1, one.rank) if one.rank > 1 else 0
            given.append((each, [labels[axis]]))
        elif blocks and each.rank == one.rank and each.same:
            if one.rows:
                mixes("it has scales for a fixed number of rows")
        else:
            unknown("its scales have several dimensions")
    return follow(operation, given, [labels], dtypes=[dtype])[0]


@rule("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def _combine_quantized(operation: Operation) -> Tensor:
    operation.same(1, 2, 4, 5, 6, 7, what="a scale or zero point")
    one, other = operation.required(0), operation.required(3)
    return combined(operation, [one, other], one.dtype)


@rule("QLinearConcat", domain=MICROSOFT)
def _concat_quantized(operation: Operation) -> Tensor:
    places = range(len(operation.inputs))
    operation.same(*(at for at in places if at < 2 or (at - 2) % 3), what="a scale or zero point")
    given = [operation.required(at) for at in places[2::3]]
    if not given:
        mixes("it joins nothing")
    return joined(given, operation.axis(1, given[0].rank))
