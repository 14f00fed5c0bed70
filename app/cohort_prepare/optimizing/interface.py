"""Restore inputs, outputs and metadata of a model, which tools drop or rename."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import ValueInfoProto, helper

from cohort.errors import quoted
from cohort_prepare.failures import Rejected
from cohort_prepare.frameworks.onnx_values import all_nodes

MAY_LACK = "com.microsoft"
"""Domain of nodes that tools add without declaring it."""


def keep_interface(model: onnx.ModelProto, before: onnx.ModelProto) -> None:
    """Give `model` the metadata of `before`, and its inputs and outputs with variable dimensions.

    Declarations of unused domains are removed. Raises Rejected if the step changed the names or
    order of inputs or outputs.
    """
    weights = {one.name for one in before.graph.initializer}
    old = [one for one in before.graph.input if _is_input(one, before, weights)]
    weights = {one.name for one in model.graph.initializer}
    new = [one for one in model.graph.input if _is_input(one, model, weights)]
    _check_same("input", old, new)
    _check_same("output", before.graph.output, model.graph.output)
    _replace(model.graph.input, old)
    _replace(model.graph.output, before.graph.output)
    model.ir_version = max(model.ir_version, 4)  # before 4, weights must be inputs
    helper.set_model_props(model, {one.key: one.value for one in before.metadata_props})
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(model, field, getattr(before, field))
    model.graph.name = before.graph.name
    _declare_domains(model)


def sort_nodes(model: onnx.ModelProto) -> None:
    """Sort nodes topologically, as ONNX requires and some tools do not."""
    from onnxruntime.transformers.onnx_model import OnnxModel

    OnnxModel(model).topological_sort(is_deterministic=True)


def _is_input(one: ValueInfoProto, model: onnx.ModelProto, weights: set[str]) -> bool:
    """Return True for an input of callers. Before IR 4, initializers are also listed as inputs."""
    return one.name not in weights or model.ir_version >= 4


def _check_same(kind: str, old: Sequence[ValueInfoProto], new: Sequence[ValueInfoProto]) -> None:
    names = [[one.name for one in side] for side in (old, new)]
    if names[0] != names[1]:
        raise Rejected(f"the step changes the {kind}s from {names[0]} to {names[1]}")
    for one, other in zip(old, new, strict=True):
        kinds = [_element_type(side) for side in (one, other)]
        if kinds[0] != kinds[1]:
            raise Rejected(f"the step changes the type of {kind} {quoted(one.name)}")


def _element_type(value: ValueInfoProto) -> object:
    kind = value.type.WhichOneof("value")
    return kind, value.type.tensor_type.elem_type if kind == "tensor_type" else None


def _replace(values: object, kept: Sequence[ValueInfoProto]) -> None:
    kept = [ValueInfoProto.FromString(one.SerializeToString()) for one in kept]
    del values[:]  # type: ignore[attr-defined]
    values.extend(kept)  # type: ignore[attr-defined]


def _declare_domains(model: onnx.ModelProto) -> None:
    used = {_plain(node.domain) for node in all_nodes(model.graph)} | {""}
    for function in model.functions:
        used |= {node.domain for node in function.node}
    declared = {_plain(one.domain): one.version for one in model.opset_import}
    kept = {name: number for name, number in declared.items() if name in used}
    if MAY_LACK in used:
        kept.setdefault(MAY_LACK, 1)
    del model.opset_import[:]
    model.opset_import.extend(
        helper.make_opsetid(name, number) for name, number in sorted(kept.items())
    )


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
