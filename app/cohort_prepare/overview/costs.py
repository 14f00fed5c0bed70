"""Count floating-point operations of a graph's nodes from the shapes of their values.

A multiply-add counts as two operations, and each element of an element-wise operator as one.
Moving data counts as none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import helper

from cohort_prepare.overview.parts import OperatorCost, Uncounted

Sizes = Sequence[int]
"""A shape with known dimensions only."""

Shapes = Mapping[str, Sizes]
"""Fully known shapes, by value name."""

UNKNOWN_SHAPE = "a shape is unknown"
NO_RULE = "no rule for this operator"
COMPARES = "trees compare, and hardly compute"


@dataclass
class CostCount:
    """Operations counted so far."""

    flops: Counter[str] = field(default_factory=Counter)
    nodes: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[tuple[str, str]] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Total operations."""
        return sum(self.flops.values())

    def add(self, other: CostCount, times: int = 1) -> None:
        """Add the operations of another graph that runs `times` times."""
        self.flops.update({name: flops * times for name, flops in other.flops.items()})
        self.nodes.update(other.nodes)
        self.uncounted.update(other.uncounted)
        self.notes.update(other.notes)

    def by_operator(self) -> list[OperatorCost]:
        """Return costs by operator, highest first, without those of zero cost."""
        return [
            OperatorCost(name, self.nodes[name], flops)
            for name, flops in self.flops.most_common()
            if flops
        ]

    def left_out(self) -> list[Uncounted]:
        """Return the operators that were not counted, and why."""
        return [
            Uncounted(name, count, reason) for (name, reason), count in self.uncounted.most_common()
        ]


def count_flops(graph: onnx.GraphProto, outer: Shapes | None = None) -> CostCount:
    """Count the operations of one run of a graph with inferred shapes.

    outer: Shapes of values around a subgraph.
    """
    shapes = {**(outer or {}), **known_shapes(graph)}
    count = CostCount()
    for node in graph.node:
        inner = [count_flops(body, shapes) for body in subgraphs(node)]
        if inner:
            _add_inner(count, node, inner, shapes)
        else:
            _add_node(count, node, shapes)
    return count


def known_shapes(graph: onnx.GraphProto) -> dict[str, Sizes]:
    """Return the fully known shapes in a graph."""
    found: dict[str, Sizes] = {one.name: tuple(one.dims) for one in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
            sizes = value.type.tensor_type.shape.dim
            if all(size.HasField("dim_value") and size.dim_value >= 0 for size in sizes):
                found[value.name] = tuple(size.dim_value for size in sizes)
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    found[node.output[0]] = tuple(attribute.t.dims)
    return found


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _add_inner(
    count: CostCount, node: onnx.NodeProto, inner: Sequence[CostCount], shapes: Shapes
) -> None:
    if node.op_type == "If":
        count.add(max(inner, key=lambda one: one.total))
        count.notes["for If, only the more expensive branch is counted"] = None
        return
    times = _scanned(node, shapes) if node.op_type == "Scan" else None
    if times is None:
        count.notes[f"the body of {node.op_type} is counted once, even if it runs more often"] = (
            None
        )
    for one in inner:
        count.add(one, 1 if times is None else times)


def _scanned(node: onnx.NodeProto, shapes: Shapes) -> int | None:
    """Return the iterations of a Scan over axis 0; None if unknown."""
    shape = shapes.get(node.input[-1]) if node.input else None
    along = {one.name: one.ints for one in node.attribute}.get("scan_input_axes", ())
    return shape[0] if shape and not any(along) else None


def _add_node(count: CostCount, node: onnx.NodeProto, shapes: Shapes) -> None:
    name = node.op_type
    count.nodes[name] += 1
    if name in FREE:
        return
    rule = RULES.get(name)
    if rule is None or node.domain not in RULED_DOMAINS:
        count.uncounted[name, COMPARES if name.startswith("TreeEnsemble") else NO_RULE] += 1
        return
    values = _Values(node, shapes)
    try:
        count.flops[name] += rule(values)
    except (KeyError, IndexError, ValueError, ZeroDivisionError, TypeError):
        count.uncounted[name, UNKNOWN_SHAPE] += 1


def _attributes(node: onnx.NodeProto) -> dict[str, object]:
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


class _Values:
    """Shapes of a node's inputs and outputs; raises KeyError or IndexError for an unknown one."""

    def __init__(self, node: onnx.NodeProto, shapes: Shapes) -> None:
        self._node, self._shapes = node, shapes
        self.attributes = _attributes(node)

    def input(self, place: int) -> Sizes:
        return self._shapes[self._node.input[place]]

    def output(self, place: int = 0) -> Sizes:
        return self._shapes[self._node.output[place]]

    def has(self, place: int) -> bool:
        return len(self._node.input) > place and bool(self._node.input[place])

    def number(self, name: str, default: int = 0) -> int:
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def text(self, name: str) -> str:
        value = self.attributes[name]
        return value.decode() if isinstance(value, bytes) else str(value)

    def lengths(self, name: str) -> Sizes:
        value = self.attributes[name]
        if not isinstance(value, Sequence):
            raise TypeError(name)
        return [int(one) for one in value]


_Rule = Callable[[_Values], int]


def _matmul(values: _Values) -> int:
    first = values.input(0)
    inner = first[-2] if values.number("transA") and len(first) > 1 else first[-1]
    return 2 * math.prod(values.output()) * inner


def _gemm(bias: int) -> _Rule:
    def rule(values: _Values) -> int:
        made = math.prod(values.output())
        return _matmul(values) + (made if values.has(bias) else 0)

    return rule


def _conv(weight: int, bias: int) -> _Rule:
    def rule(values: _Values) -> int:
        made = math.prod(values.output())
        each = math.prod(values.input(weight)[1:])
        return 2 * made * each + (made if values.has(bias) else 0)

    return rule


def _conv_transpose(values: _Values) -> int:
    return 2 * math.prod(values.input(0)) * math.prod(values.input(1)[1:])


def _nbits(values: _Values) -> int:
    return 2 * math.prod(values.output()) * values.number("K")


def _recurrent(values: _Values) -> int:
    length, rows = values.input(0)[:2]
    return 2 * length * rows * (math.prod(values.input(1)) + math.prod(values.input(2)))


def _attention(values: _Values) -> int:
    """Count attention of [rows, length, hidden] or [rows, heads, length, size]."""
    query, made = values.input(0), math.prod(values.output())
    keys = values.input(1)[-2]
    return 2 * math.prod(query) * keys + 2 * made * keys


def _any_attention(values: _Values) -> int:
    """Count ONNX's Attention, or ONNX Runtime's, which also projects its input."""
    first, second = values.input(0), values.input(1)
    if len(second) != 2:  # weights are not a matrix
        return _attention(values)
    rows, length, _ = first
    projected = 2 * rows * length * math.prod(second)
    return projected + 4 * rows * length * length * values.output()[-1]


def _einsum(values: _Values) -> int:
    terms = values.text("equation").replace(" ", "").split("->")[0].split(",")
    lengths: dict[str, int] = {}
    for place, term in enumerate(terms):
        if "." in term:
            raise ValueError("an ellipsis")
        lengths.update(zip(term, values.input(place), strict=True))
    return 2 * math.prod(lengths.values())


def _per_output(times: int) -> _Rule:
    return lambda values: times * math.prod(values.output())


def _per_input(times: int) -> _Rule:
    return lambda values: times * math.prod(values.input(0))


def _pool(values: _Values) -> int:
    return math.prod(values.output()) * math.prod(values.lengths("kernel_shape"))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ELEMENTWISE = _words(
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BiasAdd Ceil Celu Clip Cos Cosh DequantizeLinear "
    "Div Elu Equal Erf Exp Floor Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN "
    "LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow QLinearAdd "
    "QLinearMul QuantizeLinear Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign "
    "Sqrt Sub Sum Tan Tanh ThresholdedRelu Where Xor"
)

REDUCTIONS = _words(
    "ArgMax ArgMin CumSum DynamicQuantizeLinear GlobalAveragePool GlobalMaxPool "
    "QLinearGlobalAveragePool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean "
    "ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)

WEIGHTED: Mapping[str, int] = {
    "BatchNormalization": 2,
    "BiasGelu": 9,
    "FastGelu": 8,
    "Gelu": 8,
    "GroupNormalization": 8,
    "InstanceNormalization": 8,
    "LayerNormalization": 8,
    "LogSoftmax": 5,
    "QuickGelu": 3,
    "RMSNormalization": 5,
    "SimplifiedLayerNormalization": 5,
    "SkipLayerNormalization": 9,
    "SkipSimplifiedLayerNormalization": 6,
    "Softmax": 5,
}
"""Approximate operations per element."""

FREE = _words(
    "ArrayFeatureExtractor Cast CastLike Compress Concat Constant ConstantOfShape DepthToSpace "
    "Dropout Expand EyeLike Flatten Gather GatherElements GatherND Identity OneHot Pad Range "
    "Reshape ReverseSequence ScatterElements ScatterND SequenceAt SequenceConstruct Shape Size "
    "Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze ZipMap LabelEncoder"
)
"""Operators that move or describe data."""

RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(ELEMENTWISE, _per_output(1)),
    **dict.fromkeys(REDUCTIONS, _per_input(1)),
    **{name: _per_input(times) for name, times in WEIGHTED.items()},
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool", "QLinearAveragePool"), _pool),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(
        ("MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "DynamicQuantizeMatMul"),
        _matmul,
    ),
    "MatMulIntegerToFloat": _matmul,
    "MatMulNBits": _nbits,
    "Gemm": _gemm(2),
    "FusedGemm": _gemm(2),
    "QGemm": _gemm(6),
    "Conv": _conv(1, 2),
    "FusedConv": _conv(1, 2),
    "ConvInteger": _conv(1, 9),
    "QLinearConv": _conv(3, 8),
    "ConvTranspose": _conv_transpose,
    "Attention": _any_attention,
    "MultiHeadAttention": _attention,
    "Einsum": _einsum,
    "LinearRegressor": lambda values: 2 * math.prod(values.output()) * values.input(0)[-1],
    "LinearClassifier": lambda values: 2 * math.prod(values.output(1)) * values.input(0)[-1],
    "Scaler": _per_output(2),
    "Normalizer": _per_output(3),
}
"""Operations of a node by operator of ONNX, ONNX-ML and ONNX Runtime."""

RULED_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
