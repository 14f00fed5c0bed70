"""Infer the shapes of all values of a graph for given lengths of variable dimensions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from typing import cast

import onnx
from onnx import helper, inliner, shape_inference

MAX_SYMBOLIC_NODES = 5000
"""ONNX Runtime's inference, in Python, takes about a second for this many nodes."""


@dataclass
class Lengths:
    """Lengths for variable dimensions.

    batch: For the first dimension of each input, if variable.
    given: For others: by symbol, or by input and axis as `input.1`.
    """

    batch: int = 1
    given: Mapping[str, int] = field(default_factory=dict)


def with_lengths(model: onnx.ModelProto, lengths: Lengths) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model with inlined functions and inferred shapes, and the dimensions left open."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    else:
        made = onnx.ModelProto()
        made.CopyFrom(model)
        model = made
    symbols = dict(lengths.given)
    left_open: dict[str, None] = {}
    initializers = {one.name for one in model.graph.initializer}
    for value in model.graph.input:
        if value.name in initializers:
            continue
        for axis, size, name in _open(value):
            length = lengths.given.get(name, lengths.given.get(f"{value.name}.{axis}"))
            if length is None and axis == 0:
                length = lengths.batch
            if length is None:
                left_open[name or f"{value.name}.{axis}"] = None
                continue
            if name:
                symbols.setdefault(name, length)
            size.dim_value = length
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        for _, size, name in _open(value):
            if name in symbols:
                size.dim_value = symbols[name]
    return infer_values(model), [name for name in left_open if name not in symbols]


def _open(
    value: onnx.ValueInfoProto,
) -> Iterator[tuple[int, onnx.TensorShapeProto.Dimension, str]]:
    if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if not size.HasField("dim_value"):
                yield axis, size, size.dim_param


def infer_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """Infer with ONNX, and with ONNX Runtime if the model has its operators. Never raises."""
    if not any((node.domain, node.op_type) in PLAIN_OPERATORS for node in model.graph.node):
        return _infer_plain(model)
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for node in plain.graph.node:
        _make_plain(node)
    plain = _infer_plain(plain)
    for values in ("output", "value_info"):
        model.graph.ClearField(values)
        getattr(model.graph, values).extend(getattr(plain.graph, values))
    return model


def _infer_plain(model: onnx.ModelProto) -> onnx.ModelProto:
    with suppress(Exception):  # then only the file's shapes are known
        model = shape_inference.infer_shapes(model, data_prop=True)
    others = any(node.domain not in STANDARD_DOMAINS for node in model.graph.node)
    if others and len(model.graph.node) <= MAX_SYMBOLIC_NODES:
        model = _infer_symbolically(model)
    return model


def _infer_symbolically(model: onnx.ModelProto) -> onnx.ModelProto:
    """Run ONNX Runtime's inference as far as possible.

    If it stops early, it prints a message and leaves its results in a file of the working folder.
    """
    with tempfile.TemporaryDirectory(prefix="cohort-") as folder, chdir(folder):
        with suppress(Exception):  # also raised if sympy is missing
            from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

            return cast(
                onnx.ModelProto, SymbolicShapeInference.infer_shapes(model, auto_merge=True)
            )
        with suppress(Exception):
            return onnx.load("sym_shape_infer_temp.onnx", load_external_data=False)
    return model


STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})

PLAIN_OPERATORS: Mapping[tuple[str, str], tuple[str, int]] = {
    ("com.microsoft", "FusedConv"): ("Conv", 3),
    ("com.microsoft", "FusedGemm"): ("Gemm", 3),
    ("com.microsoft", "FusedMatMul"): ("MatMul", 2),
    ("ai.onnx.ml", "Binarizer"): ("Cast", 1),
    ("ai.onnx.ml", "Imputer"): ("Cast", 1),
    ("ai.onnx.ml", "Normalizer"): ("Cast", 1),
    ("ai.onnx.ml", "Scaler"): ("Cast", 1),
}
"""Operators without inference, replaced by ONNX operators with as many first inputs."""


def _make_plain(node: onnx.NodeProto) -> None:
    attributes = {one.name: one for one in node.attribute}
    turned = any(one.i for name, one in attributes.items() if name in {"transA", "transB"})
    if (node.domain, node.op_type) not in PLAIN_OPERATORS or (
        node.op_type == "FusedMatMul" and turned
    ):
        return
    node.op_type, inputs = PLAIN_OPERATORS[node.domain, node.op_type]
    node.domain = ""
    del node.input[inputs:]
    if node.op_type == "Cast":
        node.ClearField("attribute")
        node.attribute.append(helper.make_attribute("to", onnx.TensorProto.FLOAT))
    for name, one in attributes.items():
        if name.startswith("activation"):
            node.attribute.remove(one)
