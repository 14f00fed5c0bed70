"""Apply recipes to a model with ONNX Runtime's tools, in a process that may crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnx

from cohort_prepare.failures import Rejected
from cohort_prepare.frameworks.onnx_values import MAX_INLINE_BYTES, all_nodes
from cohort_prepare.onnx_files import model_size, read_onnx, write_onnx_to
from cohort_prepare.optimizing.rewriting import apply_step
from cohort_prepare.overview.shapes import infer_values
from cohort_prepare.quantizing.ranges import BETWEEN, OPERATORS
from cohort_prepare.quantizing.recipes import (
    DynamicRecipe,
    Float16Recipe,
    GraphFacts,
    Int4Recipe,
    Recipe,
    StaticRecipe,
)

RECURRENT = ("LSTM", "Attention")
"""Operators whose weights only the dynamic recipe quantizes."""

MIN_WEIGHTS = 2
"""Dimensions of a weight to quantize; biases have one."""

FLOAT_WEIGHTS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


def find_quantizable(model: onnx.ModelProto) -> GraphFacts:
    """Describe the parts of a model that can be quantized; weights need not be loaded."""
    weights = [one for one in model.graph.initializer if one.name]
    sizes = {one.name: _bytes(one) for one in weights}
    wide = {
        one.name
        for one in weights
        if len(one.dims) >= MIN_WEIGHTS and one.data_type in FLOAT_WEIGHTS
    }
    wanted = [
        node
        for node in model.graph.node
        if node.op_type in (*OPERATORS, *RECURRENT) and not wide.isdisjoint(node.input)
    ]
    used = {name for node in wanted for name in node.input if name in wide}
    return GraphFacts(
        operators=dict(Counter(node.op_type for node in all_nodes(model.graph))),
        quantizable=tuple(node.name for node in wanted),
        quantizable_bytes=sum(sizes[name] for name in used),
        weight_bytes=sum(sizes.values()),
    )


def _bytes(weight: onnx.TensorProto) -> int:
    elements = 1
    for size in weight.dims:
        elements *= size
    return elements * max(1, onnx.helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize)


def pre_process(model: Path, out: Path) -> GraphFacts:
    """Fold constants, fuse standard operators, infer shapes, and name every node."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    large = needs_data_file(model)
    given = read_onnx(model)
    named = out.with_name("named.onnx")
    name_nodes(given)
    write_onnx_to(given, named)
    try:
        quant_pre_process(named, out, save_as_external_data=large)
    except Exception:  # noqa: BLE001 - sympy knows few operators beyond ONNX's own
        quant_pre_process(named, out, save_as_external_data=large, skip_symbolic_shape=True)
    prepared = onnx.load(out, load_external_data=False)
    name_nodes(prepared)
    flatten_biases(prepared)
    add_types(prepared)
    onnx.save(prepared, out)
    return find_quantizable(prepared)


def needs_data_file(model: Path) -> bool:
    """Return True if the model's weights need a separate file."""
    return model_size(model) > MAX_INLINE_BYTES


def name_nodes(model: onnx.ModelProto) -> bool:
    """Give nodes unique names; return True if any node was renamed."""
    taken = Counter(node.name for node in model.graph.node)
    named = False
    for number, node in enumerate(model.graph.node):
        if not node.name or taken[node.name] > 1:
            node.name = f"{node.op_type}_{number}"
            while taken[node.name]:
                node.name += "_"
            taken[node.name] += 1
            named = True
    return named


def add_types(model: onnx.ModelProto) -> None:
    """Add datatypes of values after operators such as Scaler, which ONNX cannot infer.

    The tools skip values of unknown datatypes.
    """
    known = {one.name for one in model.graph.value_info}
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    found = infer_values(copied).graph.value_info
    model.graph.value_info.extend(one for one in found if one.name not in known)


def flatten_biases(model: onnx.ModelProto) -> None:
    """Reshape Gemm biases [1, N], from fusion, to [N]: the quantizer fails on the former."""
    uses = Counter(name for node in all_nodes(model.graph) for name in node.input)
    weights = {one.name: one for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Gemm" and len(node.input) == 3 and uses[node.input[2]] == 1:
            bias = weights.get(node.input[2])
            if bias is not None and len(bias.dims) == 2 and bias.dims[0] == 1:
                del bias.dims[0]


def build(recipe: Recipe, prepared: Path, original: Path, ranges: Path, out: Path) -> None:
    """Apply a recipe.

    prepared: The model after `pre_process`.
    original: The original model, whose names, order, shapes and metadata are kept.
    ranges: Folder that `find_ranges` wrote to.
    out: File to write, in an empty folder.

    Raises Rejected if the recipe does not change the model.
    """
    raw = out.with_name("raw.onnx")
    external = needs_data_file(prepared)
    match recipe:
        case DynamicRecipe():
            _dynamic(recipe, prepared, raw, external=external)
            model = read_onnx(raw)
        case StaticRecipe():
            _static(recipe, prepared, ranges, raw, external=external)
            model = read_onnx(raw)
        case Int4Recipe():
            model = _int4(recipe, prepared)
        case Float16Recipe():
            model = apply_step("fp16", prepared).model
    _restore(model, onnx.load(original, load_external_data=False))
    write_onnx_to(model, out)
    for left in (raw, raw.with_name(raw.name + ".data")):
        left.unlink(missing_ok=True)


def _dynamic(recipe: DynamicRecipe, prepared: Path, out: Path, *, external: bool) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        prepared,
        out,
        weight_type=QuantType.QUInt8 if recipe.weights == "uint8" else QuantType.QInt8,
        per_channel=True,
        reduce_range=recipe.reduce_range,
        nodes_to_exclude=_with_products(recipe.excluded),
        use_external_data_format=external,
    )


def _with_products(names: Sequence[str]) -> list[str]:
    """Return `names`, and the names of the MatMuls that ONNX Runtime's tools make from Gemms."""
    return [*names, *(f"{name}_MatMul" for name in names)]


def _static(
    recipe: StaticRecipe, prepared: Path, ranges: Path, out: Path, *, external: bool
) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static

    kinds = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }
    quantize_static(
        prepared,
        out,
        calibration_cache_path=ranges / f"{recipe.method}.json",
        calibrate_method=kinds[recipe.method],
        op_types_to_quantize=[*OPERATORS, *BETWEEN] if recipe.convolutional else list(OPERATORS),
        per_channel=True,
        reduce_range=recipe.reduce_range,
        activation_type=QuantType.QUInt8 if recipe.activations == "uint8" else QuantType.QInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=list(recipe.excluded),
        use_external_data_format=external,
        extra_options={"MatMulConstBOnly": True},
    )


def _int4(recipe: Int4Recipe, prepared: Path) -> onnx.ModelProto:
    model = read_onnx(prepared)
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.onnx_model import ONNXModel

    wrapped = ONNXModel(model)
    wrapped.replace_gemm_with_matmul()
    quantizer = MatMulNBitsQuantizer(
        wrapped.model,
        block_size=recipe.block_size,
        accuracy_level=4,  # INT8 sums; with FP32 it was slower than the original
        nodes_to_exclude=_with_products(recipe.excluded),
    )
    quantizer.process()
    made: onnx.ModelProto = quantizer.model.model
    return made


def _restore(made: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Restore the original's metadata, and remove what the tools added."""
    graph = made.graph
    for now, before in ((graph.input, original.graph.input), (graph.output, original.graph.output)):
        if [one.name for one in now] != [one.name for one in before]:
            raise Rejected("the quantized model's inputs or outputs differ from the original's")
        del now[:]
        now.extend(before)
    # Keep graph.value_info: without it, ONNX Runtime 1.31 crashes on some FP16 models.
    graph.name, graph.doc_string = original.graph.name, original.graph.doc_string
    made.doc_string, made.domain = original.doc_string, original.domain
    made.producer_name, made.producer_version = original.producer_name, original.producer_version
    made.model_version = original.model_version
    del made.metadata_props[:]
    made.metadata_props.extend(original.metadata_props)
    used = {node.domain for node in all_nodes(graph)} | {""}
    used |= {node.domain for function in made.functions for node in function.node}
    versions = {one.domain: one.version for one in made.opset_import if one.domain in used}
    for domain in used - versions.keys():
        versions[domain] = 1
    del made.opset_import[:]
    made.opset_import.extend(
        onnx.helper.make_opsetid(domain, versions[domain]) for domain in sorted(versions)
    )
    for node in all_nodes(graph):
        node.doc_string = ""
        del node.metadata_props[:]
