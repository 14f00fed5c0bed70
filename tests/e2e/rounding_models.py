"""Models whose rows do not influence each other, and are rounded in different ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from cohort.tensors import Array, Arrays

WIDTH = 1024
"""Width of a layer that takes long enough for rows to share runs."""


@dataclass(frozen=True)
class Rounding:
    """A model of one input `x` and one output `y`.

    graph: Its nodes, in the text form of ONNX; they read `h`, a layer's output for `x`.
    shape: The shape of `h`, -1 for the rows.
    node: The node that rounds a row by its run, in words; "" if there is no such node.
    least_rows: Rows that a run needs so that all get the same bits; 0 if no number helps.
    constants: More inputs of its nodes, by name.
    """

    graph: str
    shape: Sequence[int]
    node: str = ""
    least_rows: int = 1
    constants: Mapping[str, Array] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        """The model: a wide layer, then its nodes."""
        random = np.random.default_rng(3)
        width = int(np.prod([size for size in self.shape if size > 0]))
        weights = {
            "w": random.standard_normal((64, WIDTH)), "v": random.standard_normal((WIDTH, width))
        }  # fmt: skip
        constants: dict[str, Array] = {"shape": np.array(self.shape), **self.constants}
        constants |= {name: one.astype(np.float32) / 16 for name, one in weights.items()}
        text = (
            '<ir_version: 10, opset_import: ["": 20]> rounding (float[N, 64] x) => (float y) {'
            "a = MatMul(x, w) r = Relu(a) o = MatMul(r, v) h = Reshape(o, shape)"
            f"{self.graph}}}"
        )
        model = onnx.parser.parse_model(text)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        model.graph.initializer.extend(
            numpy_helper.from_array(value, name) for name, value in constants.items()
        )
        return model


def request(number: int) -> Arrays:
    """The inputs of the caller with this number: of one row, every fifth of three."""
    random = np.random.default_rng(number)
    rows = 1 if number % 5 else 3
    return {"x": random.standard_normal((rows, 64)).astype(np.float32)}


FIRST = {"axes": np.array([1])}
LAST = {"axes": np.array([2])}

ROUNDINGS = {
    "dense": Rounding("y = Relu(h)", (-1, 33)),
    "aligned_logs": Rounding("a1 = Abs(h) y = Log(a1)", (-1, 48)),
    "logs": Rounding("a1 = Abs(h) [logs] y = Log(a1)", (-1, 33), "Log 'logs'", 0),
    "sums": Rounding(
        "[sums] y = ReduceSum <keepdims: int = 0> (h, axes)",
        (-1, 16, 48), "ReduceSum 'sums'", 2, FIRST,
    ),
    "odd_sums": Rounding(
        "[sums] y = ReduceSum <keepdims: int = 0> (h, axes)",
        (-1, 3, 13), "ReduceSum 'sums'", 0, LAST,
    ),
}  # fmt: skip
