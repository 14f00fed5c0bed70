"""Operators of ai.onnx.ml and com.microsoft, which have no node tests, with inputs that run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tools.prove.experiment import Array, RowCase
from tools.prove.node_cases import variants

ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"

_random = np.random.default_rng(7)


def _floats(*shape: int) -> Array:
    return _random.standard_normal(shape).astype(np.float32)


def _bytes(*shape: int) -> Array:
    return _random.integers(0, 255, shape).astype(np.uint8)


def _signed(*shape: int) -> Array:
    return _random.integers(-9, 9, shape).astype(np.int8)


def _ints(*values: int) -> Array:
    return np.array(values, np.int32)


B, S, H = 2, 4, 8  # rows, positions and width
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32)
SCALE, ZERO = np.float32(0.05), np.uint8(100)
QKV = _floats(B, S, H)
TEXTS = np.array(["a b c", "a", "b b", ""], object)
TREE = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip
SUPPORT = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 3.0]}

Case = tuple[str, Sequence[Any], dict[str, Any]]
"""An operator, its inputs (None: left out) and its attributes, with `outputs`, their number."""


def _attention() -> Iterator[Case]:
    weights, bias = _floats(H, 3 * H), _floats(3 * H)
    heads = {"num_heads": 2}
    for mask in (None, _ints(4, 2), MASK):
        yield "Attention", [QKV, weights, bias, mask], heads
        yield "MultiHeadAttention", [QKV, QKV + 1, QKV - 1, bias, mask], heads
    yield "Attention", [QKV, weights, bias, None, None, _floats(1, 2, 4, 4)], heads
    yield "Attention", [QKV, weights, bias, None, None, _floats(B, 2, 4, 4)], heads
    yield "Attention", [QKV, weights, bias, None, _floats(2, B, 2, 3, 4)], {**heads, "outputs": 2}
    yield "Attention", [QKV, weights, bias], {**heads, "unidirectional": 1}
    yield "MultiHeadAttention", [QKV, QKV, QKV, None, None, _floats(1, 2, 4, 4)], heads
    yield "MultiHeadAttention", [QKV, QKV, QKV, None, None, _floats(B, 2, 4, 4)], heads
    past = _floats(B, 2, 8, 8)
    grouped = {"num_heads": 4, "kv_num_heads": 2, "outputs": 3}
    one = _floats(B, 1, 32), _floats(B, 1, 16), _floats(B, 1, 16)
    cached = _ints(4, 2), np.int32(8)
    yield "GroupQueryAttention", [*one, past, past + 1, *cached], grouped
    positions = np.stack([np.arange(S)] * B).astype(np.int64)
    yield "RotaryEmbedding", [QKV, positions, _floats(9, 2), _floats(9, 2)], {"num_heads": 2}
    yield "RotaryEmbedding", [QKV, np.array([1]), _floats(9, 2), _floats(9, 2)], {"num_heads": 2}
    ids = _random.integers(0, 9, (B, S)).astype(np.int32)
    tables = [_floats(10, H), _floats(6, H), _floats(2, H), _floats(H), _floats(H)]
    yield "EmbedLayerNormalization", [ids, ids % 2, *tables, MASK], {"outputs": 2}
    few = [ids, None, *tables[:2], None, *tables[3:], None]
    yield "EmbedLayerNormalization", few, {"outputs": 2}


def _networks() -> Iterator[Case]:
    for operator in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
        for skip in (_floats(B, S, H), _floats(S, H), _floats(1, S, H)):
            yield operator, [QKV, skip, _floats(H)], {}
    for operator in ("FastGelu", "BiasGelu"):
        yield operator, [QKV, _floats(H)], {}
    for operator in ("Gelu", "QuickGelu", "FastGelu"):
        yield operator, [QKV], {}
    for swapped in (0, 1):
        for shape in ((4, 4), (2, 4, 4), (3, 3, 3)):
            pair = [_floats(*shape), _floats(*shape)]
            yield "FusedMatMul", pair, {"transA": swapped, "transB": 1 - swapped}
    yield "FusedMatMul", [_floats(3, 3, 3), _floats(3, 3, 3)], {"transA": 1, "transBatchA": 1}
    for first in (0, 1):  # [4, 2, 3, 5] or [2, 3, 4, 5], times [5, 2, 3, 6] or [2, 3, 5, 6]
        one, other = _floats(2, 3, 4, 5), _floats(2, 3, 5, 6)
        if first:
            one = one.transpose(2, 0, 1, 3)
        else:
            other = other.transpose(2, 0, 1, 3)
        yield "FusedMatMul", [one, other], {"transBatchA": first, "transBatchB": 1 - first}
    yield "FusedConv", [_floats(2, 3, 5, 5), _floats(4, 3, 2, 2)], {"activation": "Relu"}
    yield "FusedGemm", [_floats(3, 4), _floats(4, 2), _floats(2)], {"activation": "Relu"}
    blocks = _random.integers(0, 255, (8, 2, 8)).astype(np.uint8)
    for rows in (QKV.repeat(4, -1), _floats(4, 32)):
        more = {"K": 32, "N": 8, "bits": 4, "block_size": 16}
        yield "MatMulNBits", [rows, blocks, _floats(16)], more


def _quantized() -> Iterator[Case]:
    by = [SCALE, ZERO]
    for operator in ("QLinearAdd", "QLinearMul"):
        for other in (_bytes(3, 3), _bytes(3), _bytes(1, 3)):
            yield operator, [_bytes(3, 3), *by, other, *by, *by], {}
    for operator in ("QLinearSigmoid", "QLinearLeakyRelu"):
        yield operator, [_bytes(3, 3), *by, *by], {}
    for axis in (0, 1):
        yield "QLinearConcat", [*by, _bytes(3, 3), *by, _bytes(3, 3), *by], {"axis": axis}
        softmax = [_bytes(3, 3), SCALE, ZERO, np.float32(1 / 256), np.uint8(0)]
        yield "QLinearSoftmax", softmax, {"axis": axis, "opset": 13}
    image = _bytes(2, 3, 4, 4)
    yield "QLinearAveragePool", [image, *by, *by], {"kernel_shape": [2, 2]}
    yield "QLinearGlobalAveragePool", [image, *by, *by], {"channels_last": 0}
    weights = [_signed(4, 3), SCALE, np.int8(0)]
    yield "QGemm", [_bytes(3, 4), *by, *weights, _ints(1, 2, 3), *by], {}
    yield "QGemm", [_bytes(4, 4), *by, *weights, None, *by], {"transA": 1}
    yield "MatMulIntegerToFloat", [_bytes(4, 8), _signed(8, 3), SCALE, SCALE, ZERO], {}
    yield "DynamicQuantizeMatMul", [_floats(4, 8), _signed(8, 3), SCALE, np.int8(0)], {}
    for operator, values in (("QuantizeLinear", _floats(3, 3)), ("DequantizeLinear", _bytes(3, 3))):
        yield operator, [values, SCALE, ZERO], {}
        yield operator, [values, np.abs(_floats(3)) + 0.1, _bytes(3)], {"axis": 0}
    yield "NhwcMaxPool", [_bytes(2, 4, 4, 3)], {"kernel_shape": [2, 2]}
    last = {"channels_last": 1}
    image, filters = _bytes(2, 5, 4, 3), [_signed(4, 3, 2, 2), SCALE, np.int8(0)]
    yield "QLinearConv", [image, *by, *filters, *by], {**last, "strides": [1, 2]}
    yield "QLinearGlobalAveragePool", [image, *by, *by], last


def _tables() -> Iterator[Case]:
    for shape in ((3, 3), (3,), (2, 3, 3)):
        values = _floats(*shape)
        yield "Normalizer", [values], {"norm": "L2"}
        yield "Scaler", [values], {"offset": [1.0, 2.0, 3.0], "scale": [1.0, 2.0, 3.0]}
        yield "Scaler", [values], {"offset": [1.0], "scale": [2.0]}
        yield (
            "Imputer",
            [values],
            {"imputed_value_floats": [0.0, 1.0, 2.0], "replaced_value_float": 1.0},
        )
        yield "ArrayFeatureExtractor", [values, np.array([0, 2])], {}
        yield "ArrayFeatureExtractor", [values, np.array([[0, 2], [1, 1]])], {}
        yield "Binarizer", [values], {"threshold": 0.1}
        linear = {"coefficients": [1.0, 2.0, 3.0], "intercepts": [0.5]}
        yield "LinearRegressor", [values], {**linear, "targets": 1}
        yield (
            "LinearClassifier",
            [values],
            {
                "coefficients": [1.0, 2.0, 3.0, 1.0, 0.0, 1.0], "intercepts": [0.0, 1.0],
                "classlabels_ints": [0, 1], "outputs": 2, "post_transform": "SOFTMAX",
            },
        )  # fmt: skip
        targets = {
            "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
            "target_weights": [1.0, 2.0], "n_targets": 1,
        }  # fmt: skip
        yield "TreeEnsembleRegressor", [values], {**TREE, **targets}
        classes = {
            "class_treeids": [0, 0], "class_nodeids": [1, 2], "class_ids": [0, 1],
            "class_weights": [1.0, 1.0], "classlabels_int64s": [0, 1], "outputs": 2,
        }  # fmt: skip
        yield "TreeEnsembleClassifier", [values], {**TREE, **classes}
        vectors = {**SUPPORT, "coefficients": [1.0, -1.0], "rho": [0.1], "n_supports": 2}
        yield (
            "SVMRegressor",
            [values],
            {**vectors, "support_vectors": [1.0, 0.0, 2.0, 0.0, 1.0, 1.0]},
        )
        classifier = {
            **SUPPORT, "coefficients": [1.0, -1.0], "rho": [0.1], "vectors_per_class": [1, 1],
            "support_vectors": [1.0, 0.0, 2.0, 0.0, 1.0, 1.0], "classlabels_ints": [0, 1],
            "outputs": 2,
        }  # fmt: skip
        yield "SVMClassifier", [values], classifier
        yield "FeatureVectorizer", [values, values], {"inputdimensions": [3, 3]}
    whole = _random.integers(0, 3, (3, 2)).astype(np.int64)
    yield "LabelEncoder", [whole], {"keys_int64s": [0, 1], "values_floats": [0.5, 1.5]}
    yield "LabelEncoder", [TEXTS], {"keys_strings": ["a"], "values_int64s": [3], "default_int64": 9}
    yield "CategoryMapper", [TEXTS], {"cats_strings": ["a", "b"], "cats_int64s": [1, 2]}
    yield "OneHotEncoder", [whole], {"cats_int64s": [0, 1, 2], "zeros": 1}


def _texts() -> Iterator[Case]:
    cut = {"mark": 0, "pad_value": "#", "separators": [" "], "mincharnum": 1}
    for texts in (TEXTS[:3], TEXTS.reshape(2, 2)):
        yield "Tokenizer", [texts], cut
    yield "Tokenizer", [TEXTS], {**cut, "mark": 1}


def contrib_cases() -> Iterator[RowCase]:
    """Each operator with some assignments of axes to its inputs."""
    groups = (_attention(), _networks(), _quantized(), _tables(), _texts())
    for number, (operator, inputs, more) in enumerate(case for group in groups for case in group):
        domain = ML if operator in ML_OPERATORS else MICROSOFT
        model, arrays = _model(operator, domain, inputs, dict(more))
        yield from variants(f"{operator} {number}", model, arrays)


ML_OPERATORS = frozenset(operator for operator, _, _ in _tables())


def _model(
    operator: str, domain: str, inputs: Sequence[Any], attributes: dict[str, Any]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    arrays = {f"i{at}": np.asarray(one) for at, one in enumerate(inputs) if one is not None}
    names = [f"i{at}" if one is not None else "" for at, one in enumerate(inputs)]
    outputs = [f"o{at}" for at in range(attributes.pop("outputs", 1))]
    graph = helper.make_graph(
        [helper.make_node(operator, names, outputs, domain=domain, **attributes)],
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in arrays.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    opsets = [helper.make_opsetid(*one) for one in (("", 21), (ML, 3), (MICROSOFT, 1))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), arrays
