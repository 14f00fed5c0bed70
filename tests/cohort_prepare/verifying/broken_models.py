"""Small models, and the same models converted wrongly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser

Weights = Mapping[str, NDArray[np.float32]]

RANDOM = np.random.default_rng(7)
WEIGHTS: Weights = {
    "w": RANDOM.standard_normal((4, 3)).astype(np.float32),
    "b": RANDOM.standard_normal(3).astype(np.float32),
    "kernel": RANDOM.standard_normal((5, 3, 3, 3)).astype(np.float32),
    "table": RANDOM.standard_normal((1000, 3)).astype(np.float32),
    "mean": np.array([5.8, 3.1, 3.8, 1.2], np.float32),
    "deviation": np.array([0.8, 0.4, 1.8, 0.8], np.float32),
}


def model(
    text: str, *, opset: int = 18, **more: NDArray[np.generic] | np.generic
) -> onnx.ModelProto:
    """A model of ONNX's text format; of `WEIGHTS` and `more` it has those that it names."""
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.ml" : 3]>\ng {text}'
    )
    used = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in {**WEIGHTS, **more}.items()
        if name in used
    )
    return made


ROWS = "(float[N,4] x) => (float[N,3] y)"
IMAGES = "(float[N,3,8,8] x) => (float[N,5] y)"
LABELS = "(float[N,4] x) => (int64[N] label)"
POOLED = "c = Conv(s, kernel) p = GlobalAveragePool(c) y = Flatten(p)"

SOURCES: Mapping[str, onnx.ModelProto] = {
    "scores": model(f"{ROWS} {{ y = Gemm(x, w, b) }}"),
    "probabilities": model(f"{ROWS} {{ s = Gemm(x, w, b) y = Softmax(s) }}"),
    "scaled": model(
        f"{ROWS} {{ c = Sub(x, mean) n = Div(c, deviation) s = Gemm(n, w, b) y = Softmax(s) }}"
    ),
    "branching": model(
        f"""{ROWS} {{
            s = Gemm(x, w, b) t = ReduceSum<keepdims=0>(x) over = Greater(t, zero)
            d = Mul(s, two) y = Where(over, d, s)
        }}""",
        zero=np.float32(0),
        two=np.float32(2),
    ),
    "normalized": model(
        f"""{ROWS} {{
            s = Gemm(x, w, b)
            y = BatchNormalization(s, ones, b, b, ones)
        }}""",
        ones=np.ones(3, np.float32),
    ),
    "images": model(f"{IMAGES} {{ s = Div(x, most) {POOLED} }}", most=np.float32(255)),
    "layout": model(
        f"{IMAGES} {{ f = Flatten(x) y = MatMul(f, wide) }}",
        wide=RANDOM.standard_normal((192, 5)).astype(np.float32),
    ),
    "ids": model(
        "(int64[N,L] ids) => (float[N,3] y)"
        " { e = Gather(table, ids) y = ReduceMean<keepdims=0>(e, one) }",
        one=np.array([1]),
    ),
    "overflowing": model(
        f"{ROWS} {{ s = Gemm(x, w, b) y = Mul(s, many) }}", many=np.float32(70000)
    ),
    "labels": model(f"{LABELS} {{ s = Gemm(x, w, b) label = ArgMax<axis=1, keepdims=0>(s) }}"),
    "pair": model(
        "(float[N,4] left, float[N,4] right) => (float[N,3] y)"
        " { s = MatMul(left, w) t = MatMul(right, w) u = Tanh(t) y = Add(s, u) }"
    ),
    "imputed": model(
        f"{ROWS} {{ m = IsNaN(x) f = Where(m, zero, x) y = Gemm(f, w, b) }}", zero=np.float32(0)
    ),
    "targets": model(
        f"{ROWS} {{ s = Gemm(x, w, b) y = Mul(s, sizes) }}",
        sizes=np.array([1e6, 1, 5], np.float32),
    ),
    "far": model(
        f"{ROWS} {{ o = Greater(x, far) f = Where(o, far, x) y = Gemm(f, w, b) }}",
        far=np.float32(1000),
    ),
    "steps": model(
        f"{ROWS} {{ o = LessOrEqual(x, three) f = Cast<to=1>(o) y = Gemm(f, w, b) }}",
        three=np.float32(3),
    ),
    "three": model("(float[N,2,3] x) => (float[N,2,3] y) { y = Softmax<axis=-1>(x) }"),
}


def _columns(*places: int) -> NDArray[np.float32]:
    return WEIGHTS["w"][list(places)]


BROKEN: Mapping[str, tuple[str, onnx.ModelProto, str]] = {
    "a reshape to one row": (
        "scores",
        model(f"{ROWS} {{ r = Reshape(x, one) y = Gemm(r, w, b) }}", one=np.array([1, 4])),
        "batches of 1 agree, .*the batch axis was frozen at export. Export with a variable first",
    ),
    "a branch frozen by tracing": (
        "branching",
        model(f"{ROWS} {{ s = Gemm(x, w, b) y = Mul(s, two) }}", two=np.float32(2)),
        r"agrees on \d+ of \d+ cases .*a branch on values may have been frozen .*"
        r"torch\.export",
    ),
    "two columns swapped": (
        "probabilities",
        model(f"{ROWS} {{ s = Gemm(x, o, b) y = Softmax(s) }}", o=_columns(0, 2, 1, 3)),
        "has its columns 1 and 2 swapped: use the order",
    ),
    "two inputs swapped": (
        "pair",
        model(
            "(float[N,4] left, float[N,4] right) => (float[N,3] y)"
            " { s = MatMul(right, w) t = MatMul(left, w) u = Tanh(t) y = Add(s, u) }"
        ),
        "inputs 'left' and 'right' are swapped: swap their names",
    ),
    "the division by 255 left out": (
        "images",
        model(f"{IMAGES} {{ s = Identity(x) {POOLED} }}"),
        "is divided by 255: preprocessing was omitted|times 255",
    ),
    "the scaler left out": (
        "scaled",
        model(f"{ROWS} {{ s = Gemm(x, w, b) y = Softmax(s) }}"),
        "include all preprocessing",
    ),
    "classes shifted": (
        "probabilities",
        model(
            f"{ROWS} {{ s = Gemm(x, w, b) p = Softmax(s) y = Gather<axis=1>(p, order) }}",
            order=np.array([2, 0, 1]),
        ),
        "columns are the source's shifted by 1: use the source's class order",
    ),
    "classes in another order": (
        "probabilities",
        model(
            f"{ROWS} {{ s = Gemm(x, w, b) p = Softmax(s) y = Gather<axis=1>(p, order) }}",
            order=np.array([1, 0, 2]),
        ),
        "columns are the source's in another order .*use the source's class order",
    ),
    "dropout in training mode": (
        "scores",
        model(
            f"{ROWS} {{ s = Gemm(x, w, b) y = Dropout(s, half, training) }}",
            half=np.float32(0.5),
            training=np.True_,
        ),
        r"change from run to run for the same inputs: it has dropout, .*model\.eval\(\)",
    ),
    "batch normalization in training mode": (
        "normalized",
        model(
            f"""{ROWS} {{
                s = Gemm(x, w, b) m = ReduceMean(s, first) c = Sub(s, m) q = Mul(c, c)
                v = ReduceMean(q, first) e = Add(v, small) d = Sqrt(e) n = Div(c, d) y = Add(n, b)
            }}""",
            first=np.array([0]),
            small=np.float32(1e-5),
        ),
        r"depend on other rows of its batch.*BatchNormalization in training mode",
    ),
    "the other image layout": (
        "layout",
        model(
            f"{IMAGES} {{ t = Transpose<perm=[0,2,3,1]>(x) f = Flatten(t) y = MatMul(f, wide) }}",
            wide=numpy_helper.to_array(SOURCES["layout"].graph.initializer[0]),
        ),
        "read as N.* instead of N.*: export it with the source's layout",
    ),
    "an overflow in FP16": (
        "overflowing",
        model(
            f"{ROWS} {{ s = Gemm(x, w, b) c = Cast<to=1>(many) y = Mul(s, c) }}",
            many=np.float16(np.inf),  # 70000
        ),
        "NaN or infinity where the source has numbers .*FP16 above 65504. Keep those layers",
    ),
    "logits in place of probabilities": (
        "probabilities",
        model(f"{ROWS} {{ y = Gemm(x, w, b) }}"),
        "softmax of the model's output is the source's: the model returns logits",
    ),
    "softmax twice": (
        "probabilities",
        model(f"{ROWS} {{ s = Gemm(x, w, b) p = Softmax(s) y = Softmax(p) }}"),
        "softmax of the source's output is the model's: it is applied twice; remove one",
    ),
    "ids cut to a byte": (
        "ids",
        model(
            """(int64[N,L] ids) => (float[N,3] y) {
                c = Cast<to=2>(ids) i = Cast<to=7>(c)
                e = Gather(table, i) y = ReduceMean<keepdims=0>(e, one)
            }""",
            one=np.array([1]),
        ),
        "cast to a narrower datatype.*Keep ids as INT64",
    ),
    "labels encoded otherwise": (
        "labels",
        model(
            f"{LABELS} {{ s = Gemm(x, w, b) a = ArgMax<axis=1, keepdims=0>(s)"
            " label = Gather(codes, a) }",
            codes=np.array([10, 20, 30]),
        ),
        r"labels are encoded differently \(.*: export the source's labels",
    ),
    "weights of another epoch": (
        "probabilities",
        model(
            f"{ROWS} {{ s = Gemm(x, early, b) y = Softmax(s) }}",
            early=(WEIGHTS["w"] * np.float32(0.8) + np.float32(0.1)),
        ),
        r"same training as the source",
    ),
    "missing values filled with another number": (
        "imputed",
        model(
            f"{ROWS} {{ m = IsNaN(x) f = Where(m, nine, x) y = Gemm(f, w, b) }}", nine=np.float32(9)
        ),
        "differ only for missing values .*imputer",
    ),
    "the imputer left out": (
        "imputed",
        model(f"{ROWS} {{ y = Gemm(x, w, b) }}"),
        "differ only for missing values .*imputer",
    ),
    "a small target beside a large one": (
        "targets",
        model(
            f"{ROWS} {{ s = Gemm(x, w, b) y = Mul(s, sizes) }}",
            sizes=np.array([1e6, -1, 5], np.float32),
        ),
        "differs on",
    ),
    "a clip far from ordinary values left out": (
        "far",
        model(f"{ROWS} {{ y = Gemm(x, w, b) }}"),
        "differs on",
    ),
    "another comparison at whole numbers": (
        "steps",
        model(
            f"{ROWS} {{ o = Less(x, three) f = Cast<to=1>(o) y = Gemm(f, w, b) }}",
            three=np.float32(3),
        ),
        "differs on",
    ),
    "ids after the 512th left out": (
        "ids",
        model(
            """(int64[N,L] ids) => (float[N,3] y) {
                i = Slice(ids, start, end, one)
                e = Gather(table, i) y = ReduceMean<keepdims=0>(e, one)
            }""",
            one=np.array([1]),
            start=np.array([0]),
            end=np.array([512]),
        ),
        "differs on",
    ),
    "softmax as opset 11 had it": (
        "three",
        model("(float[N,2,3] x) => (float[N,2,3] y) { y = Softmax<axis=1>(x) }", opset=11),
        "sum to 1 along other axes.*opset 13",
    ),
}
