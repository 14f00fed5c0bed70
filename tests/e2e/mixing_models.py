"""Models as people bring them, of which many let one caller's answer depend on who else asks.

Each stands for a class of public bug reports, which the docstrings of `requests` name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from cohort.tensors import Array, Arrays

RANDOM = np.random.default_rng(1)


@dataclass(frozen=True)
class Brought:
    """A model.

    graph: Its graph, in the text form of ONNX, without weights.
    request: The inputs of the caller with this number.
    verdict: The expected verdict on its rows.
    weights: Its weights, by name.
    example: Requests for whose sizes it is proven, as in `config.yaml`; "" for all sizes.
    """

    graph: str
    request: Callable[[int], Arrays]
    verdict: str
    weights: Mapping[str, Array] = field(default_factory=dict)
    example: str = ""

    def model(self) -> onnx.ModelProto:
        """The model."""
        head = '<ir_version: 10, opset_import: ["": 20, "ai.onnx.ml": 4]>'
        model = onnx.parser.parse_model(f"{head} brought {self.graph}")
        model.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), name) for name, value in self.weights.items()
        )
        onnx.checker.check_model(model)
        return model


def _of(number: int) -> np.random.Generator:
    return np.random.default_rng(number)


def _noise(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def _pixels(number: int) -> Arrays:
    """Bright and dark images (microsoft/onnxruntime#10111, NVIDIA/TensorRT#1912)."""
    most = 4 if number % 2 else 256
    return {"image": _of(number).integers(0, most, (1, 48)).astype(np.uint8)}


def _sentence(number: int) -> Arrays:
    """Texts of 1 to 5 words (onnx/onnx#5341, onnx/onnx#1861)."""
    words = [f"w{(number + place) % 20}" for place in range(1 + number % 5)]
    return {"text": np.array([" ".join(words)], object)}


def _spoken(number: int) -> Arrays:
    """A column of which the first row is read (coqui-ai/TTS#3814)."""
    words = _of(number).integers(0, 30, (1, 6))
    return {"words": words, "speaker": np.array([[number % 4]])}


def _sequence(number: int) -> Arrays:
    """Cut to the longest length of the run (pytorch/pytorch#62240)."""
    x = _of(number).standard_normal((1, 10, 4)).astype(np.float32)
    return {"x": x, "length": np.array([[1 + number % 7]])}


def _features(number: int) -> Arrays:
    """Small and large numbers (NVIDIA/TensorRT#4402, open-mmlab/mmyolo#776)."""
    x = _of(number).standard_normal((1, 8)) * (1000 if number % 2 else 1)
    return {"x": x.astype(np.float32)}


def _counted(number: int) -> Arrays:
    """An input's value is the number of output rows (triton-inference-server/server#8107)."""
    x = _of(number).standard_normal((1, 3)).astype(np.float32)
    return {"x": x, "count": np.array([[number % 2 * 2]])}


def _steps(number: int) -> Arrays:
    """Time is the first axis; a state of the same row is next to it (onnx/tensorflow-onnx#2383)."""
    x = _of(number).standard_normal((3, 1, 4)).astype(np.float32)
    return {"x": x, "state": np.full((1, 1, 4), number, np.float32)}


def _heard(number: int) -> Arrays:
    """Sound of three lengths at two rates, and a state (snakers4/silero-vad's branches)."""
    length, rate = ((4, 8), (16, 8), (24, 16), (16, 16))[number % 4]
    sound = _of(number).standard_normal((1, length)) * (100 if number % 3 else 1)
    state = np.full((2, 1, 8), number, np.float32)
    return {"sound": sound.astype(np.float32), "state": state, "rate": np.array(rate)}


BROUGHT: Mapping[str, Brought] = {
    "scaled_by_all": Brought(
        """(uint8[N, 48] image) => (float[N, 48] y)
        { c = Cast<to = 1>(image) low = ReduceMin<keepdims = 0>(c) high = ReduceMax<keepdims = 0>(c)
          d = Sub(c, low) range = Sub(high, low) y = Div(d, range) }""",
        _pixels,
        "refuted",
    ),
    "quantized": Brought(
        """(uint8[N, 48] image) => (float[N, 8] y)
        { c = Cast<to = 1>(image) q, s, z = DynamicQuantizeLinear(c) m = MatMulInteger(q, w, z)
          f = Cast<to = 1>(m) y = Mul(f, s) }""",
        _pixels,
        "refuted",
        {"w": RANDOM.integers(-100, 100, (48, 8)).astype(np.int8)},
    ),
    "words": Brought(
        """(string[N] text) => (string[N, L] y, int64[N] count)
        { y, count = StringSplit<delimiter = " ">(text) }""",
        _sentence,
        "refuted",
    ),
    "voices": Brought(
        """(int64[N, L] words, int64[N, 1] speaker) => (float[N, 16] y)
        { e = Gather(table, words) s = Gather(speaker, first) v = Gather(voices, s)
          m = ReduceMean<keepdims = 0>(e, axis) y = Add(m, v) }""",
        _spoken,
        "shared",
        {
            "table": _noise(30, 16),
            "voices": _noise(4, 16),
            "first": np.array(0),
            "axis": np.array([1]),
        },
    ),
    "trimmed": Brought(
        """(float[N, T, 4] x, int64[N, 1] length) => (float[N, L, 4] y)
        { m = ReduceMax<keepdims = 0>(length) end = Unsqueeze(m, zero)
          cut = Slice(x, zero, end, one) y = MatMul(cut, w) }""",
        _sequence,
        "shared",
        {"w": _noise(4, 4), "zero": np.array([0]), "one": np.array([1])},
    ),
    "beside_pixels": Brought(
        """(float[N, 8] x) => (float[N, 9] y)
        { b = Sigmoid(x) boxes = Mul(b, pixels) s = MatMul(b, w) best = ReduceMax<keepdims = 0>(s)
          score = Div(s, best) y = Concat<axis = 1>(boxes, score) }""",
        _features,
        "refuted",
        {"pixels": np.array(640, np.float32), "w": np.abs(_noise(8, 1))},
    ),
    "early_exit": Brought(
        """(float[N, 8] x) => (float[N, 3] y)
        { l = MatMul(x, w) p = Softmax<axis = 1>(l) best = ReduceMax<keepdims = 0>(p, axis)
          least = ReduceMin<keepdims = 0>(best) go = Greater(least, sure)
          y = If(go) <then_branch = sure_of_all () => (float[N, 3] a) { a = Identity(p) },
                      else_branch = deep () => (float[N, 3] b)
                      { t = MatMul(x, w2) b = Softmax<axis = 1>(t) }> }""",
        _features,
        "refuted",
        {
            "w": _noise(8, 3),
            "w2": _noise(8, 3),
            "axis": np.array([1]),
            "sure": np.array(0.999, np.float32),
        },
    ),
    "rows_add_up": Brought(
        """(float[N, 3] x, int64[N, 1] count) => (float[M, 3] y)
        { m = Less(places, count) i = Cast<to = 7>(m) z = NonZero(i)
          rows = Gather<axis = 0>(z, first) y = Gather(x, rows) }""",
        _counted,
        "refuted",
        {"places": np.arange(5).reshape(1, 5), "first": np.array(0)},
    ),
    "plain": Brought(
        """(float[N, 8] x) => (float[N, 3] y) { l = MatMul(x, w) y = Softmax<axis = 1>(l) }""",
        _features,
        "proven",
        {"w": _noise(8, 3)},
    ),
    "time_first": Brought(
        """(float[T, batch, 4] x, float[1, rows, 4] state) => (float[T, batch, 4] y)
        { s = Add(x, state) y = MatMul(s, w) }""",
        _steps,
        "proven",
        {"w": _noise(4, 4)},
    ),
    "heard": Brought(
        """(float[N, T] sound, float[2, M, 8] state, int64 rate)
           => (float[N, 8] y, float[2, M, 8] next)
        { s = Shape(sound) length = Gather(s, one) short = Less(length, eight)
          f = Equal(rate, eight) level = ReduceMean<keepdims = 1>(sound, axis)
          scaled = If(short) <then_branch = shorter () => (float[N, 1] a)
                         { most = ReduceMax<keepdims = 0>(sound) a = Div(level, most) },
                       else_branch = longer () => (float[N, 1] b)
                         { b = If(f) <then_branch = slow () => (float[N, 1] c) { c = Neg(level) },
                             else_branch = fast () => (float[N, 1] d) { d = Abs(level) }> }>
          h = MatMul(scaled, w) now = Gather<axis = 0>(state, zero) y = Add(h, now)
          next = Add(state, h) }""",
        _heard,
        "shared",
        {
            "w": _noise(1, 8),
            "one": np.array(1),
            "zero": np.array(0),
            "eight": np.array(8),
            "axis": np.array([1]),
        },
        """[{sound: {shape: [1, 16]}, state: {shape: [2, 1, 8]}, rate: 8},
            {sound: {shape: [3, 24]}, state: {shape: [2, 3, 8]}, rate: 16}]""",
    ),
}
