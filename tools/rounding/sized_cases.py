"""Models of one operator, for rows of many sizes: short and odd ones end within a vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tools.prove.experiment import Array, Row

SHAPES: Sequence[Sequence[int]] = (
    *((1,), (3,), (5,), (7,), (13,), (16,), (33,), (100,), (257,), (1031,), (5000,)),
    *((3, 5), (7, 13), (16, 64), (33, 31), (128, 48)),
    *((4, 5, 7), (2, 9, 9), (16, 14, 14), (64, 7, 7), (8, 33, 33)),
)
"""Shapes of a row."""

HELPERS = frozenset({"Abs", "Transpose"})
"""Operators of a case other than the one that it tries; they do not round."""

OPSET = 20
MACHINE_LEARNING, MICROSOFT = "ai.onnx.ml", "com.microsoft"

UNARY = (
    *("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Reciprocal", "Softplus", "Softsign"),
    *("Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Mish", "Gelu", "LeakyRelu", "Sin", "Cos"),
    *("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Floor", "Ceil"),
    *("Round", "Neg", "Abs", "Sign", "ThresholdedRelu"),
)
WITHIN: dict[str, tuple[float, float]] = {"Log": (0.01, 9), "Sqrt": (0, 9), "Acosh": (1, 9)}
WITHIN |= dict.fromkeys(("Asin", "Acos", "Atanh"), (-0.99, 0.99))
"""Where an operator is defined."""

DTYPES = (np.float32, np.float64, np.float16)


class SizedCase(NamedTuple):
    """A model whose rows are along axis 0 of its input `x`.

    operator: The kernel it tries, as verdicts name it, without the text that follows the name.
    shape, dtype: Those of a row.
    """

    operator: str
    model: onnx.ModelProto
    shape: Sequence[int]
    dtype: Any

    def draw(self, count: int) -> list[Row]:
        """Return `count` rows."""
        random = np.random.default_rng(len(self.shape))
        low, high = WITHIN.get(self.operator, (None, None))
        rows: list[Row] = []
        for number in range(count):
            values = random.standard_normal((1, *self.shape)) * (1.0, 0.1, 4.0)[number % 3]
            rows.append({"x": np.clip(values, low, high).astype(self.dtype)})
        return rows


Parts = tuple[str, Sequence[onnx.NodeProto], dict[str, Array]]
"""The operator, the nodes from `x` to `y`, and the constants."""

_random = np.random.default_rng(1)


def _floats(*shape: int) -> Array:
    return _random.standard_normal(shape).astype(np.float32)


def _node(
    operator: str,
    *constants: str,
    domain: str = "",
    given: str = "x",
    result: str = "y",
    **attributes: Any,
) -> onnx.NodeProto:
    return helper.make_node(operator, [given, *constants], [result], domain=domain, **attributes)


def sized_cases() -> Iterator[SizedCase]:
    """Every operator with a kernel that computes, with rows of each shape that it takes."""
    for shape in SHAPES:
        for dtype in DTYPES:
            for operator in UNARY:
                yield _case((operator, [_node(operator)], {}), shape, dtype)
            for parts in (*_of_any(shape), *_BY_RANK[len(shape)](shape)):
                yield _case(parts, shape, dtype)


def _case(parts: Parts, shape: Sequence[int], dtype: Any) -> SizedCase:
    operator, nodes, constants = parts
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, ["rows", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [
            numpy_helper.from_array(array.astype(dtype) if array.dtype == np.float32 else array, n)
            for n, array in constants.items()
        ],
    )
    graph.output[0].ClearField("type")
    opsets = [("", OPSET), (MACHINE_LEARNING, 3), (MICROSOFT, 1)]
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*one) for one in opsets], ir_version=9
    )
    return SizedCase(operator, made, shape, dtype)


def _of_any(shape: Sequence[int]) -> Iterator[Parts]:
    width = shape[-1]
    bias, ones = {"b": _floats(width)}, {"g": _floats(width)}
    for operator in ("QuickGelu", "FastGelu", "Gelu"):
        yield operator, [_node(operator, domain=MICROSOFT)], {}
    for operator in ("BiasGelu", "FastGelu"):
        yield operator, [_node(operator, "b", domain=MICROSOFT)], bias
    yield "Gelu", [_node("Gelu", approximate="tanh")], {}
    for power in (2.5, 3.0, 0.5):
        nodes = [_node("Abs", result="a"), _node("Pow", "e", given="a")]
        yield "Pow", nodes, {"e": np.array(power, np.float32)}
    for operator in ("Add", "Sub", "Mul", "Div", "Min", "Max"):
        yield operator, [_node(operator, "b")], bias
    yield "PRelu", [_node("PRelu", "b")], bias
    for operator in ("Softmax", "LogSoftmax"):
        for axis in range(1, len(shape) + 1):
            yield operator, [_node(operator, axis=axis)], {}
    for operator in (
        *("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
        *("ReduceProd", "ReduceSumSquare", "ReduceMax", "ReduceMin"),
    ):
        for axes in {(-1,), (1,), tuple(range(1, len(shape) + 1))}:
            constants = {"axes": np.array(axes)}
            if operator == "ReduceLogSum":
                nodes = [_node("Abs", result="a"), _node(operator, "axes", given="a", keepdims=0)]
            else:
                nodes = [_node(operator, "axes", keepdims=0)]
            yield operator, nodes, constants
    yield "LayerNormalization", [_node("LayerNormalization", "g", "b", axis=-1)], {**bias, **ones}
    yield (
        "SimplifiedLayerNormalization",
        [_node("SimplifiedLayerNormalization", "g", axis=-1)],
        ones,
    )
    yield "LpNormalization", [_node("LpNormalization", axis=-1)], {}
    yield "CumSum", [_node("CumSum", "axis")], {"axis": np.array(-1)}
    for columns in (1, 2, 3, 8, 17, 300):
        yield "MatMul", [_node("MatMul", "w")], {"w": _floats(width, columns)}
    yield "MatMul", [_node("MatMul", "w")], {"w": _floats(width)}
    scales: dict[str, Array] = {"s": np.array(0.05, np.float32), "z": np.array(128, np.uint8)}
    yield "QuantizeLinear", [_node("QuantizeLinear", "s", "z")], scales


def _of_vectors(shape: Sequence[int]) -> Iterator[Parts]:
    (width,) = shape
    for columns, swapped in ((17, 0), (17, 1), (1, 1)):
        weights = _floats(columns, width) if swapped else _floats(width, columns)
        constants = {"w": weights, "b": _floats(columns)}
        yield "Gemm", [_node("Gemm", "w", "b", transB=swapped)], constants
    yield (
        "Gemm",
        [_node("Gemm", "w", "b", alpha=0.7, beta=0.3)],
        {"w": _floats(width, 5), "b": _floats(5)},
    )
    for function in ("SUM", "AVERAGE"):
        more = {"aggregate_function": function, **_trees(width)}
        node = _node("TreeEnsembleRegressor", domain=MACHINE_LEARNING, **more)
        yield "TreeEnsembleRegressor", [node], {}
    linear: dict[str, Any] = {
        "coefficients": _floats(width * 3).tolist(), "intercepts": _floats(3).tolist(), "targets": 3
    }  # fmt: skip
    yield "LinearRegressor", [_node("LinearRegressor", domain=MACHINE_LEARNING, **linear)], {}
    for kind in ("RBF", "LINEAR", "POLY", "SIGMOID"):
        vectors: dict[str, Any] = {
            "coefficients": _floats(6).tolist(), "kernel_params": [0.1, 0.5, 3.0],
            "kernel_type": kind, "n_supports": 6, "rho": [0.2],
            "support_vectors": _floats(6 * width).tolist(),
        }  # fmt: skip
        yield "SVMRegressor", [_node("SVMRegressor", domain=MACHINE_LEARNING, **vectors)], {}
    for norm in ("L1", "L2", "MAX"):
        yield "Normalizer", [_node("Normalizer", domain=MACHINE_LEARNING, norm=norm)], {}
    scaled = {"offset": _floats(width).tolist(), "scale": _floats(width).tolist()}
    yield "Scaler", [_node("Scaler", domain=MACHINE_LEARNING, **scaled)], {}


def _trees(width: int) -> dict[str, Any]:
    """Thirty trees of three decisions each."""
    trees: dict[str, list[Any]] = {
        name: []
        for name in (
            *("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_values", "nodes_modes"),
            *("nodes_truenodeids", "nodes_falsenodeids"),
            *("target_treeids", "target_nodeids", "target_ids", "target_weights"),
        )
    }
    for tree in range(30):
        for place in range(7):
            leaf = place > 2
            node = {
                "nodes_treeids": tree, "nodes_nodeids": place,
                "nodes_featureids": int(_random.integers(width)),
                "nodes_values": float(_floats(1)[0]),
                "nodes_modes": "LEAF" if leaf else "BRANCH_LEQ",
                "nodes_truenodeids": 0 if leaf else 2 * place + 1,
                "nodes_falsenodeids": 0 if leaf else 2 * place + 2,
            }  # fmt: skip
            if leaf:
                node |= {
                    "target_treeids": tree, "target_nodeids": place, "target_ids": 0,
                    "target_weights": float(_floats(1)[0]),
                }  # fmt: skip
            for name, value in node.items():
                trees[name].append(value)
    return {**trees, "n_targets": 1}


def _of_sequences(shape: Sequence[int]) -> Iterator[Parts]:
    length, width = shape
    yield "Einsum", [_node("Einsum", "w", equation="nij,jk->nik")], {"w": _floats(width, 6)}
    constants = {"w": _floats(9, length, 3), "b": _floats(9)}
    yield "Conv", [_node("Conv", "w", "b", pads=[1, 1])], constants
    channels = {"g": _floats(length), "b": _floats(length)}
    yield "InstanceNormalization", [_node("InstanceNormalization", "g", "b")], channels
    turned = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1])]
    yield "MatMul", [*turned, helper.make_node("MatMul", ["x", "t"], ["y"])], {}
    for operator, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            helper.make_node(operator, ["t", "w", "r"], ["o", "h"], hidden_size=11),
            helper.make_node("Transpose", ["h"], ["y"], perm=[1, 0, 2]),
        ]
        weights = {"w": _floats(1, gates * 11, width) * 0.3, "r": _floats(1, gates * 11, 11) * 0.3}
        yield operator, nodes, weights


def _of_images(shape: Sequence[int]) -> Iterator[Parts]:
    channels, height, width = shape
    for group, out in ((1, 8), (1, 16), (channels, channels), (1, 5)):
        constants = {"w": _floats(out, channels // group, 3, 3), "b": _floats(out)}
        yield "Conv", [_node("Conv", "w", "b", pads=[1] * 4, group=group)], constants
    yield "Conv", [_node("Conv", "w")], {"w": _floats(16, channels, 1, 1)}
    each = {name: _floats(channels) for name in "gbm"} | {"v": np.abs(_floats(channels)) + 0.1}
    yield "BatchNormalization", [_node("BatchNormalization", "g", "b", "m", "v")], each
    weights = {"w": _floats(channels, 6, 3, 3)}
    yield "ConvTranspose", [_node("ConvTranspose", "w", strides=[2, 2])], weights
    for operator in ("GlobalAveragePool", "GlobalMaxPool"):
        yield operator, [_node(operator)], {}
    for operator in ("AveragePool", "MaxPool", "LpPool"):
        yield operator, [_node(operator, kernel_shape=[2, 2])], {}
    if not channels % 2:
        constants = {"g": _floats(2), "b": _floats(2)}
        node = _node("GroupNormalization", "g", "b", num_groups=2)
        yield "GroupNormalization", [node], constants
    scales = {"s": np.array([1, 1, 1.7, 1.7], np.float32)}
    for mode in ("linear", "nearest", "cubic"):
        yield "Resize", [_node("Resize", "", "s", mode=mode)], scales
    yield "LRN", [_node("LRN", size=3)], {}
    points = {"p": np.tanh(_floats(1, height, width, 2))}
    if height == width:
        expanded = [
            helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
            helper.make_node("Concat", ["n", "rest"], ["to"], axis=0),
            helper.make_node("Expand", ["p", "to"], ["grid"]),
            helper.make_node("GridSample", ["x", "grid"], ["y"]),
        ]
        yield "GridSample", expanded, {**points, "rest": np.array([height, width, 2])}


_BY_RANK = {1: _of_vectors, 2: _of_sequences, 3: _of_images}
