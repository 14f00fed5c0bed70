"""Rules of operators that sum along axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cohort.row_independence.axes import any_axes, apply_signature, follow
from cohort.row_independence.operation import MICROSOFT, Operation, rule
from cohort.row_independence.rules.elementwise import combined
from cohort.row_independence.sizes import Size
from cohort.row_independence.tensors import FLOAT, INT32, Tensor, mixes, unknown

ADDS_UP = "it adds up over all rows"


def multiplied(
    operation: Operation,
    one: Tensor,
    other: Tensor,
    dtype: int,
    *,
    swapped: Sequence[bool] = (False, False),
    stacked: Sequence[bool] = (False, False),
) -> Tensor:
    """Return the product of two matrices or stacks of matrices. Raises Unproven.

    swapped: For each operand, True if its last two axes are transposed.
    stacked: For each operand, True if its second-to-last axis comes first, before the stack axes.
    """
    if not one.rank or not other.rank:
        unknown("it multiplies plain numbers")
    rank = max(one.rank, other.rank, 2)
    stack = [f"A{at}" for at in range(rank - 2)]
    left, right = ["M", "k"], ["k", "P"]
    left = left[::-1] if swapped[0] else left
    right = right[::-1] if swapped[1] else right
    labels = [*stack[max(0, rank - one.rank) :], *left] if one.rank > 1 else ["k"]
    others = [*stack[max(0, rank - other.rank) :], *right] if other.rank > 1 else ["k"]
    for each, first in zip((labels, others), stacked, strict=True):
        if first and len(each) > 1:
            each.insert(0, each.pop(-2))
    result = [*stack, *(["M"] if one.rank > 1 else []), *(["P"] if other.rank > 1 else [])]
    return follow(
        operation, [(one, labels), (other, others)], [result],
        dtypes=[dtype], broadcast=True, why=ADDS_UP,
    )[0]  # fmt: skip


def _flags(operation: Operation, *names: str) -> list[bool]:
    return [bool(operation.attribute(name, 0)) for name in names]


@rule("MatMul")
@rule("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def _matmul(operation: Operation) -> Tensor:
    one, other = operation.required(0), operation.required(1)
    return multiplied(
        operation, one, other, one.dtype,
        swapped=_flags(operation, "transA", "transB"),
        stacked=_flags(operation, "transBatchA", "transBatchB"),
    )  # fmt: skip


@rule("MatMulInteger")
@rule("MatMulIntegerToFloat", domain=MICROSOFT)
def _matmul_integer(operation: Operation) -> Tensor:
    operation.same(*range(2, 6), what="a scale, zero point or bias")
    one, other = operation.required(0), operation.required(1)
    a_row_each = (2,) if operation.name == "MatMulInteger" else (2, 4)
    _one_scale(operation, one, *a_row_each)
    dtype = INT32 if operation.name == "MatMulInteger" else FLOAT
    return multiplied(operation, one, other, dtype)


def _one_scale(operation: Operation, one: Tensor, *places: int) -> None:
    """Raise Unproven if the file has a separate scale for each row."""
    scales = [operation.input(place) for place in places]
    if one.rows and any(scale is not None and scale.shape not in ((), (1,)) for scale in scales):
        mixes("it has a scale for each of a fixed number of rows")


@rule("QLinearMatMul")
def _qlinear_matmul(operation: Operation) -> Tensor:
    operation.same(1, 2, 4, 5, 6, 7, what="a scale or zero point")
    one, other = operation.required(0), operation.required(3)
    _one_scale(operation, one, 1, 2)
    _one_scale(operation, other, 4, 5)
    return multiplied(operation, one, other, operation.required(7).dtype)


@rule("Gemm")
@rule("FusedGemm", domain=MICROSOFT)
def _gemm(operation: Operation) -> Tensor:
    one, other, bias = operation.required(0), operation.required(1), operation.input(2)
    if one.rank != 2 or other.rank != 2:
        unknown("it multiplies a value that is not a matrix")
    found = multiplied(
        operation, one, other, one.dtype, swapped=_flags(operation, "transA", "transB")
    )
    if bias is None or bias.shape == (0,):
        return found
    if bias.rank > 2:
        unknown("the value that it adds has more dimensions")
    return combined(operation, [found, bias], one.dtype)


@rule("QGemm", domain=MICROSOFT)
def _qgemm(operation: Operation) -> Tensor:
    operation.same(1, 2, 4, 5, 6, 7, 8, what="a scale, zero point or bias")
    one, other = operation.required(0), operation.required(3)
    _one_scale(operation, one, 1, 2)
    _one_scale(operation, other, 4, 5)
    swapped = _flags(operation, "transA", "transB")
    found = multiplied(operation, one, other, FLOAT, swapped=swapped)
    if operation.input(6) is not None and found.rows and found.rows.axis:
        unknown("the value that it adds has a number for each row")
    zero = operation.input(8)
    return found if zero is None else replace(found, dtype=zero.dtype)


@rule("MatMulNBits", "MatMulBnb4", domain=MICROSOFT)
def _matmul_bits(operation: Operation) -> Tensor:
    sizes = {"n": operation.attribute("N")} if operation.attribute("N") else {}
    return apply_signature(
        operation, "A* k; =; =; =; =; = -> A* n", sizes=sizes, why=ADDS_UP
    )[0]  # fmt: skip


@rule("DynamicQuantizeLinear")
@rule("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", domain=MICROSOFT)
def _dynamic(operation: Operation) -> list[Tensor]:
    if operation.name != "DynamicQuantizeLinear" or not operation.first().same:
        mixes(
            "it scales by the smallest and the largest value of all rows together "
            "(dynamic quantization)"
        )
    return [Tensor(operation.first().shape, 2), Tensor((), FLOAT), Tensor((), 2)]


@rule("Einsum")
def _einsum(operation: Operation) -> Tensor:
    equation = str(operation.attribute("equation", "")).replace(" ", "")
    if "." in equation:
        unknown("its equation has dots")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "")
        result = "".join(sorted(one for one in set(letters) if letters.count(one) == 1))
    given = operation.present()
    if [len(term) for term in terms] != [one.rank for one in given]:
        unknown("its equation does not fit its inputs")
    labels = [[f"{'A' if one in result else 'a'}{one}" for one in term] for term in terms]
    return follow(
        operation, list(zip(given, labels, strict=True)), [[f"A{one}" for one in result]],
        broadcast=True, why=ADDS_UP,
    )[0]  # fmt: skip


REDUCED = {
    "ReduceMax": "it takes the largest over all rows",
    "ReduceMin": "it takes the smallest over all rows",
    "ReduceMean": "it takes the mean over all rows",
}


@rule(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSum"),
    *("ReduceSumSquare", *REDUCED),
)
def _reduce(operation: Operation) -> Tensor:
    one = operation.first()
    axes = operation.axes(1, one.rank)
    if not axes:
        axes = [] if operation.attribute("noop_with_empty_axes", 0) else list(range(one.rank))
    labels = [f"r{at}" if at in axes else f"A{at}" for at in range(one.rank)]
    keep = operation.attribute("keepdims", 1)
    result = [
        "1" if at in axes else label for at, label in enumerate(labels) if keep or at not in axes
    ]
    (found,) = follow(
        operation, [(one, labels)], [result], why=REDUCED.get(operation.name, ADDS_UP)
    )  # fmt: skip
    largest = operation.name in ("ReduceMax", "ReduceMin")
    return replace(found, below=one.below if largest else None)


@rule("DFT")
def _transform(operation: Operation) -> Tensor:
    one = operation.first()
    axis = operation.attribute("axis", 1)
    if operation.version >= 20:
        given = operation.known_numbers(2, "its axis")
        axis = given[0] if given else -2
    operation.same(1, what="its length")
    labels = any_axes(one)
    labels[axis], labels[-1] = "transformed", "part"
    parts = 1 if operation.attribute("inverse", 0) and operation.attribute("onesided", 0) else 2
    sizes: dict[str, Size] = {"transformed": operation.symbols.new(), "part": parts}
    return follow(operation, [(one, labels)], [labels], sizes=sizes, why=ADDS_UP)[0]


@rule("CumSum", "CumProd")
def _running(operation: Operation) -> Tensor:
    one = operation.first()
    axis = operation.known_numbers(1, "its axis")
    labels = any_axes(one)
    if not axis or not -one.rank <= axis[0] < one.rank:
        unknown("its axis is not known")
    labels[axis[0] % one.rank] = "summed"
    return follow(operation, [(one, labels)], [labels], why="it adds up from row to row")[0]
