"""Optimization steps; each rewrites a model file, in a child process."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cohort.session import ORT_VERSION
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks.onnx_values import MAX_INLINE_BYTES
from cohort_prepare.onnx_files import read_onnx
from cohort_prepare.optimizing.interface import keep_interface, sort_nodes


class NothingToDo(Exception):
    """The step cannot change this model; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A model after a step.

    what: Description of the change.
    versions: Versions of the libraries that were used.
    warnings: Warnings for users of the model.
    """

    model: onnx.ModelProto
    what: str
    versions: Mapping[str, str]
    warnings: Sequence[str] = field(default_factory=tuple)


def apply_step(step: str, path: Path, *, opset: int = 0, model_type: str = "bert") -> Rewritten:
    """Apply a step to the model at `path`; inputs and outputs keep names, order and shapes.

    Raises Rejected if it cannot be applied, NothingToDo, and errors of the library.
    """
    before = read_onnx(path)
    match step:
        case "opset":
            done = _convert_opset(before, opset)
        case "slim":
            done = _slim(path, before)
        case "fuse":
            done = _fuse(path, model_type)
        case "fp16":
            done = _to_float16(read_onnx(path))
        case "bf16":
            done = _to_bfloat16(read_onnx(path))
        case _:
            done = _optimize_offline(path, before, step.removeprefix("ort-"))
    keep_interface(done.model, before)
    return done


def _convert_opset(before: onnx.ModelProto, opset: int) -> Rewritten:
    known = onnx.defs.onnx_opset_version()
    if not MIN_OPSET <= opset <= known:
        raise Misused(
            f"opset must be from {MIN_OPSET} to {known}, the range that onnx {onnx.__version__} "
            f"converts, got {opset}"
        )
    now = next((one.version for one in before.opset_import if one.domain in {"", "ai.onnx"}), 0)
    if now == opset:
        raise NothingToDo(f"it already has opset {opset}")
    with _without_large_weights(before) as (light, weights):
        try:
            converted = onnx.version_converter.convert_version(light, opset)
        except RuntimeError as error:
            raise Rejected(
                f"opset {now} cannot be converted to {opset}: {error}; export the model again at "
                "that opset"
            ) from error
        weights.put_back(converted)
    least = helper.find_min_ir_version_for(list(converted.opset_import), ignore_unknown=True)
    converted.ir_version = max(MIN_IR, least, FUNCTIONS_IR if converted.functions else 0)
    return Rewritten(converted, f"opset {now} to {opset}", _versions("onnx"))


MIN_OPSET = 7
"""Minimum of ONNX Runtime."""

MIN_IR, FUNCTIONS_IR = 4, 8
"""IR versions from which weights need not be inputs, and models may have functions."""


class _Weights:
    """Weights removed from a model, by name."""

    def __init__(self, taken: Mapping[str, TensorProto]) -> None:
        self._taken = taken

    def put_back(self, model: onnx.ModelProto) -> None:
        """Put the weights back in place of placeholders. Raises Rejected if one is missing."""
        places = {one.name: one for one in model.graph.initializer}
        for name, weight in self._taken.items():
            if name not in places:
                raise Rejected(f"the opset converter lost the weight {name!r}")
            places[name].CopyFrom(weight)


@contextmanager
def _without_large_weights(
    model: onnx.ModelProto,
) -> Iterator[tuple[onnx.ModelProto, _Weights]]:
    """Yield the model without large weights, which converters ignore and a protobuf cannot hold."""
    light, taken = onnx.ModelProto(), {}
    light.CopyFrom(model)
    for weight in light.graph.initializer:
        if weight.ByteSize() > LARGE_WEIGHT_BYTES:
            taken[weight.name] = TensorProto()
            taken[weight.name].CopyFrom(weight)
            for kept in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
                weight.ClearField(kept)
    yield light, _Weights(taken)


LARGE_WEIGHT_BYTES = 1 << 20


def _slim(path: Path, before: onnx.ModelProto) -> Rewritten:
    import onnxslim

    if before.ir_version >= MIN_IR:
        weights = {one.name for one in before.graph.initializer}
        if frozen := [one.name for one in before.graph.input if one.name in weights]:
            raise NothingToDo(
                f"input {frozen[0]!r} has a default, which onnxslim would make a constant"
            )
    slimmed = onnxslim.slim(read_onnx(path))
    if not isinstance(slimmed, onnx.ModelProto):
        raise Rejected("onnxslim returned no model")
    return Rewritten(
        slimmed, f"onnxslim, {_nodes(before)} to {_nodes(slimmed)} nodes", _versions("onnxslim")
    )


def _fuse(path: Path, model_type: str) -> Rewritten:
    from onnxruntime.transformers import fusion_options, optimizer

    options = fusion_options.FusionOptions(model_type)
    if model_type == "bert":
        options.use_raw_attention_mask()  # the default assumes that padding is at the end
    fused = optimizer.optimize_model(
        str(path), model_type, optimization_options=options, opt_level=0
    )
    counts = {name: n for name, n in fused.get_fused_operator_statistics().items() if n}
    if not counts:
        raise NothingToDo(f"no pattern of {model_type} found")
    sort_nodes(fused.model)
    found = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    return Rewritten(fused.model, f"fused {found}", _versions("onnxruntime"))


def _to_float16(model: onnx.ModelProto) -> Rewritten:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    cut = 0
    for weight in _float_weights(model):
        values = numpy_helper.to_array(weight)
        cut += int(np.count_nonzero(np.isfinite(values) & (np.abs(values) > MAX_FLOAT16)))
    if not any(True for _ in _float_weights(model)):
        raise NothingToDo("it has no float32 weights")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # counted above
        converted = convert_float_to_float16(
            model,
            min_positive_val=MIN_FLOAT16,
            max_finite_val=MAX_FLOAT16,
            keep_io_types=True,
            disable_shape_infer=model.ByteSize() > MAX_INLINE_BYTES,
        )
    sort_nodes(converted)
    notes = (
        [f"{cut} weight values were cut to {MAX_FLOAT16:g}, the maximum of float16"] if cut else []
    )
    return Rewritten(converted, "float16, inputs and outputs kept", _versions("onnxruntime"), notes)


MAX_FLOAT16, MIN_FLOAT16 = 65504.0, 5.96e-8


def _to_bfloat16(model: onnx.ModelProto) -> Rewritten:
    """Store large weights as bfloat16, and cast them in the graph, once at load.

    ONNX Runtime's CPU provider has no bfloat16 Add, MatMul or Conv, but can cast it.
    """
    import ml_dtypes

    opset = next((one.version for one in model.opset_import if not one.domain), 0)
    if opset < BFLOAT16_OPSET:
        raise Rejected(f"bfloat16 needs opset {BFLOAT16_OPSET}, but it has {opset}: add --opset 21")
    inputs = {one.name for one in model.graph.input}
    casts = []
    for weight in _float_weights(model):
        if weight.name in inputs or np.prod(weight.dims) < WORTH_ELEMENTS:
            continue
        short = numpy_helper.to_array(weight).astype(ml_dtypes.bfloat16)
        name, kept = weight.name, weight.name + "_bfloat16"
        weight.CopyFrom(numpy_helper.from_array(short, kept))
        casts.append(helper.make_node("Cast", [kept], [name], f"{kept}_cast", to=TensorProto.FLOAT))
    if not casts:
        raise NothingToDo("the model has no large float32 weights")
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return Rewritten(model, f"{len(casts)} weights as bfloat16", _versions("onnx"))


BFLOAT16_OPSET = 13
"""Minimum opset of Cast for bfloat16."""

WORTH_ELEMENTS = 256


def _float_weights(model: onnx.ModelProto) -> Iterator[TensorProto]:
    return (one for one in model.graph.initializer if one.data_type == TensorProto.FLOAT)


def _optimize_offline(path: Path, before: onnx.ModelProto, level: str) -> Rewritten:
    optimized = save_optimized(path, level)
    notes = []
    if level == "all":
        notes = [
            "level all arranges weights for this processor: the model may not run on another one, "
            "or with another release of ONNX Runtime"
        ]
    return Rewritten(
        optimized,
        f"ONNX Runtime, level {level}, {_nodes(before)} to {_nodes(optimized)} nodes",
        _versions("onnxruntime"),
        notes,
    )


def save_optimized(path: Path, level: str) -> onnx.ModelProto:
    """Return the model as rewritten by ONNX Runtime's CPU provider at a level."""
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "model.onnx"
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = getattr(
            ort.GraphOptimizationLevel, f"ORT_ENABLE_{level.upper()}"
        )
        options.optimized_model_filepath = str(out)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "weights"
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", "1024"
        )
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return read_onnx(out)


def _nodes(model: onnx.ModelProto) -> int:
    return len(model.graph.node)


def _versions(*packages: str) -> dict[str, str]:
    return {name: ORT_VERSION if name == "onnxruntime" else version(name) for name in packages}
