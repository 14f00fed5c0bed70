"""Operators that no test of one node shows: in graphs around them, which are proven or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, parser

from tools.prove.experiment import Array, Row, RowCase

HEADER = (
    '<ir_version: 10, opset_import: ["": 20, "ai.onnx.ml": 3, "com.microsoft": 1, '
    '"com.microsoft.nchwc": 1]>'
)

ROWS = (2, 3, 4, 5)
"""Rows of each trial."""

MOST = 4
"""Whole numbers are below this one."""

CONSTANTS = """
int64 zero = {0}, int64 one = {1}, int64 four = {4}, int64 many = {16}, int64 rate = {8000},
int64[1] axis = {0}, int64[2] twice = {1, 2}, int64[2,1] rows = {0, 2}, bool yes = {1},
float low = {0}, float half = {0.5}, float high = {4000}
"""

MICROSOFT, NCHWC = "com.microsoft.", "com.microsoft.nchwc."

BRANCHES = "then_branch = a () => (r) {r = Relu(x)}, else_branch = b () => (s) {s = Neg(x)}"
BODY = """b (int64 i, bool go, float[M,4] h) => (on, next, each)
{on = Identity(go) next = Relu(h) each = Neg(h)}"""
STEP = "b (float[M,4] h, float[M,4] e) => (next, each) {next = Add(h, e) each = Relu(next)}"
SCAN = f"body = {STEP}, num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1]"
COUNTED = "f = Cast<to = 1>(i) t = ReduceSum<keepdims = 0>(f) y = Add(x, t)"
CUT = 'mark = 0, pad_value = "#", separators = [" "], mincharnum = 1'
WORDS = """mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0,
ngram_counts = [0], ngram_indexes = [0, 1], pool_strings = ["a", "b"]"""

Graph = tuple[str, str, str]
"""The operator that it shows, its inputs, of which those with N have rows, and its nodes."""


def _made_of_nothing() -> Iterator[Graph]:
    for window in ("BlackmanWindow", "HammingWindow", "HannWindow"):
        yield window, "float[N,4] x", f"w = {window}(four) y = Mul(x, w)"
    mel = "m = MelWeightMatrix(four, many, rate, low, high) y = MatMul(x, m)"
    yield "MelWeightMatrix", "float[N,9] x", mel
    yield "Constant", "float[N,1] x", "c = Constant<value_floats = [1.0, 2.0]>() y = Add(x, c)"
    yield "ConstantOfShape", "float[N,4] x", "s = Shape(x) c = ConstantOfShape(s) y = Add(x, c)"
    yield "Range", "float[N,4] x", "r = Range(zero, four, one) f = Cast<to = 1>(r) y = Mul(x, f)"
    yield "Size", "float[N,4] x, float[4] w", "s = Size(w) f = Cast<to = 1>(s) y = Mul(x, f)"
    yield "EyeLike", "float[N,4] x, float[4,4] w", "e = EyeLike(w) y = MatMul(x, e)"
    yield "Tile", "float[N,4] x", "y = Tile(x, twice)"
    yield (
        "DynamicQuantizeLinear",
        "float[N,4] x, float[4] w",
        "q, s, z = DynamicQuantizeLinear(w) d = DequantizeLinear(q, s, z) y = Mul(x, d)",
    )
    for operator in ("NonZero", "Unique"):
        yield operator, "float[N,4] x, float[4] w", f"i = {operator}(w) {COUNTED}"
    boxes = "float[N,4] x, float[1,6,4] b, float[1,1,6] s"
    yield "NonMaxSuppression", boxes, f"i = NonMaxSuppression(b, s) {COUNTED}"
    yield "StringSplit", "float[N,4] x, string[2] w", f"s, i = StringSplit(w) {COUNTED}"


def _of_chance() -> Iterator[Graph]:
    for operator in ("RandomNormal", "RandomUniform"):
        yield operator, "float[N,4] x", f"r = {operator}<shape = [4]>() y = Add(x, r)"
        yield f"{operator}Like", "float[N,4] x", f"y = {operator}Like(x)"
    yield "Multinomial", "float[N,4] x", "y = Multinomial(x)"
    yield "Dropout", "float[N,4] x", "y = Dropout(x, half, yes)"


def _with_graphs() -> Iterator[Graph]:
    for shape in ("", "[N]"):
        yield "If", f"float[N,4] x, bool{shape} c", f"y = If(c) <{BRANCHES}>"
    loop = f"h, each = Loop<body = {BODY}>(four, yes, x) s = ReduceSum(each, axis) y = Add(h, s)"
    yield "Loop", "float[N,4] x", loop
    yield "Scan", "float[N,4] h, float[N,5,4] x", f"l, y = Scan<{SCAN}>(h, x)"
    wider = "then_branch = a () => (r) {r = Relu(x)}"
    wider += ", else_branch = b () => (s) {s = Concat<axis = 1>(x, x)}"
    yield "If", "float[N,4] x, bool c", f"y = If(c) <{wider}>"
    grown = BODY.replace("[M,4]", "[M,P]").replace("Relu(h)", "Concat<axis = 1>(h, h)")
    yield "Loop", "float[N,4] x", f"y, each = Loop<body = {grown}>(one, yes, x)"
    for operator in ("SequenceConstruct", "SequenceAt"):
        yield operator, "float[N,4] x", "s = SequenceConstruct(x, x) y = SequenceAt(s, one)"
    picked = "s = SequenceConstruct(x, x) y = SequenceAt(s, k)"
    yield "SequenceAt", "float[N,4] x, int64 k", picked
    stacked = "s = SplitToSequence<axis = 1>(x, twice)"
    yield "SplitToSequence", "float[N,3] x", f"{stacked} y = SequenceAt(s, one)"
    stacked = "s = SequenceConstruct(x, x) y = ConcatFromSequence<axis = 1, new_axis = 1>(s)"
    yield "ConcatFromSequence", "float[N,4] x", stacked
    for operator in ("SplitToSequence", "ConcatFromSequence"):
        for axis in (0, 1):
            joined = f"ConcatFromSequence<axis = {axis}>(s)"
            yield operator, "float[N,4] x", f"s = SplitToSequence<axis = 1>(x) y = {joined}"


def _networks() -> Iterator[Graph]:
    for shape in ("N,3,4,4", "2,N,4,4"):
        yield "GlobalLpPool", f"float[{shape}] x", "y = GlobalLpPool(x)"
    yield "ScatterND", "float[4,N] x, float[2,N] u", "y = ScatterND(x, rows, u)"
    for operator, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights = f"float[1,{gates * 2},3] w, float[1,{gates * 2},2] r"
        inputs = f"float[5,N,3] x, float[1,N,2] h, int32[N] n, {weights}"
        yield operator, inputs, f"y = {operator}<hidden_size = 2>(x, w, r, , n, h)"
    for shape in ("N,4", "4,N"):
        normalize = "y = SimplifiedLayerNormalization(x, w)"
        yield "SimplifiedLayerNormalization", f"float[{shape}] x, float[4] w", normalize
        multiply = f"y = {MICROSOFT}TransposeMatMul<transB = 1>(x, w)"
        yield f"{MICROSOFT}TransposeMatMul", f"float[{shape}] x, float[3,4] w", multiply
    for shape in ("N,4", "1,4", "2,4"):
        ids = f"int32[N,4] x, int32[{shape}] p, float[4,8] w, float[8] g"
        embed = f"y, m = {MICROSOFT}EmbedLayerNormalization(x, x, w, w, w, g, g, x, p)"
        yield f"{MICROSOFT}EmbedLayerNormalization", ids, embed
    weights = "int8[1,3,8] w, float[1] s, int8[1] z, int8[1,2,8] r"
    recur = f"y = {MICROSOFT}DynamicQuantizeLSTM<hidden_size = 2>(x, w, r, , , , , , s, z, s, z)"
    yield f"{MICROSOFT}DynamicQuantizeLSTM", f"float[5,N,3] x, {weights}", recur
    for shape in ("N,4,4,8", "2,N,4,8"):
        normalize = f"y = {MICROSOFT}GroupNorm<groups = 2, activation = 0>(x, w, w)"
        yield f"{MICROSOFT}GroupNorm", f"float[{shape}] x, float[8] w", normalize
    for shape in ("N,32", "32,N"):
        sizes = "K = 32, N = 4, block_size = 16, quant_type = 1"
        multiply = f"y = {MICROSOFT}MatMulBnb4<{sizes}>(x, w, s)"
        yield f"{MICROSOFT}MatMulBnb4", f"float[{shape}] x, uint8[64] w, float[8] s", multiply
    for shape in ("N,3", "N"):
        named = "y = ai.onnx.ml.ZipMap<classlabels_int64s = [1, 2, 3]>(x)"
        yield "ai.onnx.ml.ZipMap", f"float[{shape}] x", named
    texts = f"w = {MICROSOFT}Tokenizer<{CUT}>(x) y = TfIdfVectorizer<{WORDS}>(w)"
    yield f"{MICROSOFT}Tokenizer", "string[N] x", texts


def _blocked() -> Iterator[Graph]:
    """Yield the layout of ONNX Runtime's own for images, which a model has that it saved."""
    window = "<kernel_shape = [1, 2], strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0]>"
    nodes = {
        "ReorderInput": "(x)",
        "ReorderOutput": "<channels = 16>(x)",
        "Conv": "(x, w)",
        "MaxPool": f"{window}(x)",
        "AveragePool": f"{window}(x)",
        "GlobalMaxPool": "(x)",
        "GlobalAveragePool": "(x)",
        "Upsample": "<scales = [1, 1, 2, 2]>(x)",
    }
    for operator, given in nodes.items():
        more = ", float[16,16,1,1] w" if operator == "Conv" else ""
        for shape in ("N,16,4,4", "1,16,N,4", "1,N,4,4"):
            yield f"{NCHWC}{operator}", f"float[{shape}] x{more}", f"y = {NCHWC}{operator}{given}"


def graph_cases() -> Iterator[RowCase]:
    """Each graph, with its rows where its inputs have N."""
    groups = (_made_of_nothing(), _of_chance(), _with_graphs(), _networks(), _blocked())
    for operator, inputs, nodes in (graph for group in groups for graph in group):
        model = parser.parse_model(f"{HEADER} g ({inputs}) => (y) <{CONSTANTS}> {{{nodes}}}")
        axes = {
            one.name: next((at for at, size in enumerate(_shape(one)) if size == "N"), None)
            for one in model.graph.input
        }
        domain, _, name = operator.rpartition(".")
        yield RowCase(f"{name} of {inputs}", model, axes, _drawer(model, axes), (domain, name))


def _shape(value: onnx.ValueInfoProto) -> list[str | int]:
    return [one.dim_param or one.dim_value for one in value.type.tensor_type.shape.dim]


def _drawer(model: onnx.ModelProto, axes: Any) -> Any:
    def draw(trial: int) -> list[Row]:
        random = np.random.default_rng(trial)
        rows = [
            {one.name: _entries(one, random) for one in model.graph.input}
            for _ in range(ROWS[trial % len(ROWS)])
        ]
        return [
            {name: rows[0][name] if axes[name] is None else row[name] for name in row}
            for row in rows
        ]

    return draw


def _entries(value: onnx.ValueInfoProto, random: np.random.Generator) -> Array:
    shape = [1 if size == "N" else int(size) for size in _shape(value)]
    match value.type.tensor_type.elem_type:
        case TensorProto.STRING:
            return np.asarray(random.choice(["a b", "b", "c a a", ""], shape), object)
        case TensorProto.FLOAT:
            return np.asarray(random.standard_normal(shape) * random.choice([1, 10]), np.float32)
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return np.asarray(random.integers(0, MOST, shape), dtype)
