"""Random graphs over the operators that have rules; ONNX Runtime was seen to run each node.

Sizes are drawn so that they coincide with the number of rows now and then. Constants are drawn so
that they have as many entries as there are rows. Shapes are computed from others as exporters do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tools.prove.experiment import Array, Row, open_session

ROWS = 3
"""Rows of the run in which a graph grows."""

OPSETS = (11, 13, 13, 17, 18, 20, 21)
SHAPES: Sequence[tuple[str | int, ...]] = (
    ("N", 4), ("N", 3), ("N", 2, 3), ("N", 3, 4), ("N", 6), ("N", 2, 4, 4), ("N",), ("N", 1),
    (2, "N", 3), ("N", 3, 3), (3, "N", 4), ("N", 1, 4), (1, "N", 2),
)  # fmt: skip
MAX_SIZE, MAX_RANK = 4000, 6

IN_VAIN = 0.2
"""The part of the graphs that keep nodes which no output needs; ONNX Runtime runs these too."""

NOT_OF_NOTHING = frozenset({"Conv", "Einsum", "GRU", "LSTM", "RNN"})
"""Operators that do not end, or end the process, where an input is empty."""

TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
DTYPES = {"f": np.float32, "i": np.int64, "b": np.bool_}


@dataclass
class Graph:
    """A graph that grows node by node.

    values: Each value with ROWS rows.
    inputs: The shape and type of each input.
    axes: Axis of each input's rows; None: it does not have rows.
    """

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, tuple[tuple[str | int, ...], str]] = field(default_factory=dict)
    axes: dict[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw, self.numbers = random.Random(self.seed), np.random.default_rng(self.seed)
        self.opset = self.draw.choice(OPSETS)
        self._made = 0
        for place in range(self.draw.choice((1, 1, 2, 2, 3))):
            shape = self.draw.choice(SHAPES)
            kind = "f" if len(shape) > 3 else self.draw.choice("ffffib")
            name = f"x{place}"
            shared = place > 0 and self.draw.random() < 0.1
            self.axes[name] = None if shared else shape.index("N")
            self.inputs[name] = shape, kind
            self.values[name] = self.entries(_sizes(shape, 1 if shared else ROWS), kind)

    def entries(self, shape: Sequence[int], kind: str, trial: Any = None) -> Array:
        """Values of a type, of another scale each time."""
        numbers = self.numbers if trial is None else trial
        if kind == "f":
            scale = numbers.choice([0.03, 0.3, 1.0, 1.0, 3.0, 30.0])
            return np.asarray(numbers.standard_normal(shape) * scale, np.float32)
        if kind == "i":
            return np.asarray(numbers.integers(0, numbers.choice([2, 4, 4, 9]), shape)).astype(
                np.int64
            )
        return np.asarray(numbers.random(shape) < numbers.choice([0.1, 0.5, 0.9]))

    def constant(self, array: Any, dtype: Any = None) -> str:
        """Return a new initializer."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype)
        return name

    def pick(self, kinds: str = "fib", least_rank: int = 0) -> str:
        """Return a value that there is, more often a recent one. Raises IndexError for none."""
        found = [
            name for name, array in self.values.items()
            if _kind(array) in kinds and array.ndim >= least_rank
        ]  # fmt: skip
        return self.draw.choice(found[-5:] if self.draw.random() < 0.7 else found)

    def axis(self, name: str) -> int:
        """Return an axis of a value, counted from either end."""
        rank = max(self.values[name].ndim, 1)
        axis = self.draw.randrange(rank)
        return axis - rank if self.draw.random() < 0.3 else axis

    def add(
        self, operator: str, inputs: Sequence[str], outputs: int = 1,
        captured: Sequence[str] = (), **attributes: Any,
    ) -> str:  # fmt: skip
        """Add a node, and give its first output. Raises ValueError where it does not run.

        captured: The values that graphs among its attributes take from outside.
        """
        names = [f"v{self._made + place}" for place in range(outputs)]
        node = helper.make_node(operator, inputs, names, **attributes)
        feeds = {one: self.values[one] for one in (*inputs, *captured) if one in self.values}
        if operator in NOT_OF_NOTHING and not all(array.size for array in feeds.values()):
            raise ValueError("it takes nothing that is empty")
        model = self._model([node], feeds, names, {one for one in inputs if one in self.constants})
        try:
            found = open_session(model.SerializeToString()).run(None, feeds)
        except Exception as error:
            raise ValueError(str(error)) from error
        for array in found:
            if _kind(array) == "?" or array.size > MAX_SIZE or array.ndim > MAX_RANK:
                raise ValueError("not a value to continue with")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError("not finite")
        self._made += outputs
        self.values.update(zip(names, map(np.asarray, found), strict=True))
        self.nodes.append(node)
        return names[0]

    def grow(self, nodes: int) -> None:
        """Add nodes until there are `nodes`, or nothing fits."""
        for _ in range(nodes * 12):
            if len(self.nodes) >= nodes:
                break
            try:
                self.draw.choice(STEPS)(self)
            except (IndexError, ValueError):
                continue

    def model(self) -> onnx.ModelProto:
        """Return the graph with some of its values as outputs; some keep unneeded nodes."""
        made = [name for node in self.nodes for name in node.output]
        outputs = self.draw.sample(made, min(len(made), self.draw.choice((1, 1, 2, 3))))
        outputs = [*dict.fromkeys([*outputs, *made[-1:]])]
        nodes = self.nodes if self.draw.random() < IN_VAIN else self._needed(outputs)
        return self._model(nodes, None, outputs, set(self.constants))

    def _needed(self, outputs: Sequence[str]) -> list[onnx.NodeProto]:
        needed, found = set(outputs), list[onnx.NodeProto]()
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output):
                found.insert(0, node)
                needed.update(node.input)
                needed.update(
                    name
                    for attribute in node.attribute
                    for inner in attribute.g.node
                    for name in inner.input
                )
        return found

    def rows(self, trial: int) -> list[Row]:
        """Return the rows of a trial."""
        numbers = np.random.default_rng((self.seed, trial))
        shared = {
            name: self.entries(_sizes(shape, 1), kind, numbers)
            for name, (shape, kind) in self.inputs.items()
            if self.axes[name] is None
        }
        return [
            {
                name: shared[name]
                if name in shared
                else self.entries(_sizes(shape, 1), kind, numbers)
                for name, (shape, kind) in self.inputs.items()
            }
            for _ in range((2, 3, 4, 5)[trial % 4])
        ]

    def _model(
        self,
        nodes: Sequence[onnx.NodeProto],
        feeds: dict[str, Array] | None,
        outputs: Sequence[str],
        constants: set[str],
    ) -> onnx.ModelProto:
        if feeds is None:
            inputs = [
                helper.make_tensor_value_info(
                    name,
                    TYPES[kind],
                    [one if self.axes[name] is not None or one != "N" else 1 for one in shape],
                )
                for name, (shape, kind) in self.inputs.items()
            ]
        else:
            inputs = [
                helper.make_tensor_value_info(name, TYPES[_kind(array)], array.shape)
                for name, array in feeds.items()
            ]
        graph = helper.make_graph(
            nodes, "g", inputs, [helper.make_empty_tensor_value_info(name) for name in outputs],
            [numpy_helper.from_array(self.constants[name], name) for name in sorted(constants)],
        )  # fmt: skip
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8
        )


def _sizes(shape: Sequence[str | int], rows: int) -> list[int]:
    return [rows if isinstance(size, str) else size for size in shape]


def _kind(array: Any) -> str:
    dtype = getattr(array, "dtype", None)
    return next((kind for kind, one in DTYPES.items() if dtype == one), "?")


def random_graph(seed: int) -> Graph:
    """Return a graph of 3 to 20 nodes."""
    graph = Graph(seed)
    graph.grow(graph.draw.choice((3, 4, 5, 6, 8, 10, 14, 20)))
    return graph


# --- Steps: each adds a node or a few, as exporters write them.

Step = Callable[[Graph], None]

UNARY = (
    "Abs", "Acos", "Asin", "Atan", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu",
    "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
    "Gelu", "Identity", "Log",
)  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "Mod", "Add", "Mul", "Sub"]
COMPARISONS = ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]
REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip


def _unary(graph: Graph) -> None:
    graph.add(graph.draw.choice(UNARY), [graph.pick("fi")])


def _other(graph: Graph, name: str, kinds: str) -> str:
    """A value to combine with: any other, or a constant that may be as long as there are rows."""
    array = graph.values[name]
    if graph.draw.random() < 0.5:
        return graph.pick(kinds)
    rank = graph.draw.randint(0, array.ndim)
    shape = [graph.draw.choice((1, size, size)) for size in array.shape[array.ndim - rank :]]
    return graph.constant(graph.entries(shape, _kind(array)))


def _binary(graph: Graph) -> None:
    name = graph.pick("fi")
    kind = _kind(graph.values[name])
    pair = [name, _other(graph, name, kind)]
    graph.draw.shuffle(pair)
    graph.add(graph.draw.choice(BINARY), pair)


def _compare(graph: Graph) -> None:
    name = graph.pick("fi")
    other = _other(graph, name, _kind(graph.values[name]))
    truth = graph.add(graph.draw.choice(COMPARISONS), [name, other])
    if graph.draw.random() < 0.5:
        graph.add("Cast", [truth], to=graph.draw.choice((TensorProto.FLOAT, TensorProto.INT64)))


def _where(graph: Graph) -> None:
    name = graph.pick("f")
    graph.add("Where", [graph.pick("b"), name, _other(graph, name, "f")])


def _logic(graph: Graph) -> None:
    name = graph.pick("b")
    graph.add(graph.draw.choice(("And", "Or", "Xor")), [name, graph.pick("b")])


def _cast(graph: Graph) -> None:
    graph.add("Cast", [graph.pick()], to=graph.draw.choice(list(TYPES.values())))


def _matmul(graph: Graph) -> None:
    name = graph.pick("f", 1)
    inner = graph.values[name].shape[-1]
    if graph.draw.random() < 0.5:
        other = graph.pick("f", 1)
    else:
        stack = [graph.draw.choice((1, ROWS, 2))] if graph.draw.random() < 0.2 else []
        other = graph.constant(graph.entries([*stack, inner, graph.draw.choice((1, 3, 4))], "f"))
    pair = [name, other] if graph.draw.random() < 0.8 else [other, name]
    graph.add("MatMul", pair)


def _gemm(graph: Graph) -> None:
    name = graph.pick("f", 2)
    shape = graph.values[name].shape
    swap = graph.draw.choice((0, 0, 0, 1))
    inner = shape[0] if swap else shape[-1]
    outer = graph.draw.choice((ROWS, 2, 4))
    bias = graph.draw.choice(([], [outer], [1, outer], [ROWS, outer], [ROWS, 1]))
    weights = graph.constant(graph.entries([inner, outer], "f"))
    graph.add("Gemm", [name, weights, graph.constant(graph.entries(bias, "f"))], transA=swap)


def _axes_node(graph: Graph, operator: str, name: str, axes: list[int], **more: Any) -> None:
    as_input = graph.opset >= 18 or (
        graph.opset >= 13 and operator in ("ReduceSum", "Squeeze", "Unsqueeze")
    )
    if as_input:
        graph.add(operator, [name, graph.constant(axes, np.int64)], **more)
    else:
        graph.add(operator, [name], axes=axes, **more)


def _reduce(graph: Graph) -> None:
    name = graph.pick("fi", 1)
    keep = graph.draw.choice((0, 1))
    if graph.draw.random() < 0.1:
        graph.add(graph.draw.choice(REDUCTIONS), [name], keepdims=keep)
        return
    count = graph.draw.choice((1, 1, 2))
    axes = [graph.axis(name) for _ in range(count)]
    _axes_node(graph, graph.draw.choice(REDUCTIONS), name, axes, keepdims=keep)


def _arg(graph: Graph) -> None:
    name = graph.pick("f", 1)
    keep = graph.draw.choice((0, 1))
    graph.add(graph.draw.choice(("ArgMax", "ArgMin")), [name], axis=graph.axis(name), keepdims=keep)


def _normalize(graph: Graph) -> None:
    name = graph.pick("f", 1)
    axis = graph.axis(name)
    operator = graph.draw.choice(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"))
    graph.add(operator, [name], axis=axis)


def _layer_norm(graph: Graph) -> None:
    name = graph.pick("f", 1)
    array, axis = graph.values[name], graph.axis(name)
    scale = graph.constant(graph.entries(array.shape[axis:], "f"))
    graph.add("LayerNormalization", [name, scale], axis=axis)


def _channel_norm(graph: Graph) -> None:
    name = graph.pick("f", 2)
    channels = graph.values[name].shape[1]
    lists = [graph.constant(np.abs(graph.entries([channels], "f")) + 0.1) for _ in range(4)]
    if graph.draw.random() < 0.5:
        graph.add("BatchNormalization", [name, *lists])
    else:
        graph.add("InstanceNormalization", [name, *lists[:2]])


def _transpose(graph: Graph) -> None:
    name = graph.pick("fib", 2)
    order = list(range(graph.values[name].ndim))
    graph.draw.shuffle(order)
    graph.add("Transpose", [name], perm=order)


def _squeeze(graph: Graph) -> None:
    name = graph.pick("fib", 1)
    ones = [at for at, size in enumerate(graph.values[name].shape) if size == 1]
    if graph.draw.random() < 0.2:
        graph.add("Squeeze", [name])
    else:
        _axes_node(graph, "Squeeze", name, [graph.draw.choice(ones)])


def _unsqueeze(graph: Graph) -> None:
    name = graph.pick()
    _axes_node(graph, "Unsqueeze", name, [graph.draw.randint(0, graph.values[name].ndim)])


def _factors(graph: Graph, total: int) -> list[int]:
    found: list[int] = []
    while total > 1 and graph.draw.random() < 0.7 and len(found) < 3:
        options = [one for one in range(2, total + 1) if total % one == 0]
        found.append(graph.draw.choice(options))
        total //= found[-1]
    found.append(total)
    graph.draw.shuffle(found)
    return found


def _reshape(graph: Graph) -> None:
    name = graph.pick("fib", 1)
    array = graph.values[name]
    shape = _factors(graph, array.size)
    if graph.draw.random() < 0.7:
        shape[graph.draw.randrange(len(shape))] = -1
    for at in range(min(len(shape), array.ndim)):
        if shape[at] == array.shape[at] and graph.draw.random() < 0.3:
            shape[at] = 0
    graph.add("Reshape", [name, graph.constant(shape, np.int64)])


def _size_of(graph: Graph, name: str, axis: int) -> str:
    """One size of a value, as a list of one."""
    shape = graph.add("Shape", [name])
    return graph.add("Gather", [shape, graph.constant([axis], np.int64)], axis=0)


def _reshape_by_shape(graph: Graph) -> None:
    """To sizes taken from its own shape, some of them multiplied together."""
    name = graph.pick("fib", 1)
    array = graph.values[name]
    parts: list[str] = []
    for axis in range(array.ndim):
        size = _size_of(graph, name, axis)
        if parts and graph.draw.random() < 0.4:
            parts[-1] = graph.add("Mul", [parts[-1], size])
        else:
            parts.append(size)
    if graph.draw.random() < 0.4:
        parts[graph.draw.randrange(len(parts))] = graph.constant([-1], np.int64)
    if graph.draw.random() < 0.2:
        graph.draw.shuffle(parts)
    graph.add("Reshape", [name, graph.add("Concat", parts, axis=0)])


def _flatten(graph: Graph) -> None:
    name = graph.pick("fib", 1)
    rank = graph.values[name].ndim
    graph.add("Flatten", [name], axis=graph.draw.randint(-rank, rank))


def _expand(graph: Graph) -> None:
    name = graph.pick()
    if graph.draw.random() < 0.5:
        other = graph.pick("fib", 1)
        graph.add("Expand", [name, graph.add("Shape", [other])])
        return
    shape = [graph.draw.choice((1, size, ROWS, 2)) for size in graph.values[name].shape]
    graph.add("Expand", [name, graph.constant(shape, np.int64)])


def _tile(graph: Graph) -> None:
    name = graph.pick("fib", 1)
    times = [graph.draw.choice((1, 1, 2)) for _ in graph.values[name].shape]
    graph.add("Tile", [name, graph.constant(times, np.int64)])


def _slice(graph: Graph) -> None:
    name = graph.pick("fib", 1)
    axis = graph.axis(name)
    size = graph.values[name].shape[axis]
    start = graph.draw.choice((0, 0, 1, -1, -2, size))
    end = graph.draw.choice((size, 1, 2, -1, 1 << 40, -(1 << 40)))
    step = graph.draw.choice((1, 1, 1, 2, -1))
    parts = ([start], [end], [axis], [step])
    graph.add("Slice", [name, *(graph.constant(one, np.int64) for one in parts)])


def _slice_to_size(graph: Graph) -> None:
    """A table cut to a size of another value."""
    other = graph.pick("fib", 1)
    table = graph.constant(graph.entries([9, graph.draw.choice((1, 4))], "f"))
    end = _size_of(graph, other, graph.draw.randrange(graph.values[other].ndim))
    zero = graph.constant([0], np.int64)
    graph.add("Slice", [table, zero, end, zero])


def _add_positions(graph: Graph) -> None:
    """Entries of a table, for as many places as there are up to a limit, as GPT-2 adds them."""
    name = graph.pick("f", 2)
    shape = graph.values[name].shape
    zero, one = graph.constant(0, np.int64), graph.constant(1, np.int64)
    length = graph.add("Squeeze", [_size_of(graph, name, len(shape) - 2)])
    limit = graph.constant(graph.draw.choice((1, 2, ROWS, 5)), np.int64)
    places = graph.add("Range", [zero, graph.add("Min", [length, limit]), one])
    table = graph.constant(graph.entries([5, shape[-1]], "f"))
    graph.add("Add", [name, graph.add("Gather", [table, places], axis=0)])


def _split(graph: Graph) -> None:
    name = graph.pick("fib", 1)
    axis = graph.axis(name)
    size, count = graph.values[name].shape[axis], graph.draw.choice((2, 2, 3))
    if size % count:
        raise ValueError("it does not divide")
    more: dict[str, Any] = {"num_outputs": count} if graph.opset >= 18 else {}
    graph.add("Split", [name], outputs=count, axis=axis, **more)


def _concat(graph: Graph) -> None:
    name = graph.pick("fib", 1)
    array = graph.values[name]
    axis = graph.axis(name)
    if graph.draw.random() < 0.7:
        other = graph.pick(_kind(array), array.ndim)
    else:
        other = graph.constant(graph.entries(array.shape, _kind(array)))
    parts = [name, other]
    graph.draw.shuffle(parts)
    graph.add("Concat", parts, axis=axis)


def _pad(graph: Graph) -> None:
    name = graph.pick("f", 1)
    rank = graph.values[name].ndim
    pads = [0] * (2 * rank)
    pads[graph.draw.randrange(2 * rank)] = graph.draw.choice((1, 2))
    mode = graph.draw.choice(("constant", "edge", "reflect"))
    graph.add("Pad", [name, graph.constant(pads, np.int64)], mode=mode)


def _gather(graph: Graph) -> None:
    name = graph.pick("fib", 1)
    axis = graph.axis(name)
    if graph.draw.random() < 0.3:
        graph.add("Gather", [name, graph.pick("i")], axis=axis)
        return
    size = graph.values[name].shape[axis]
    shape = graph.draw.choice(([], [1], [2], [ROWS], [1, 2]))
    index = graph.numbers.integers(-size, max(size, 1), shape) if size else np.zeros(shape)
    graph.add("Gather", [name, graph.constant(index, np.int64)], axis=axis)


def _embed(graph: Graph) -> None:
    table = graph.constant(graph.entries([10, graph.draw.choice((2, 4))], "f"))
    graph.add("Gather", [table, graph.pick("i")], axis=0)


def _gather_elements(graph: Graph) -> None:
    name = graph.pick("fi", 1)
    array, axis = graph.values[name], graph.axis(name)
    if graph.draw.random() < 0.4:
        index = graph.pick("i", array.ndim)
    else:
        index = graph.constant(
            graph.numbers.integers(0, max(array.shape[axis], 1), array.shape), np.int64
        )
    graph.add("GatherElements", [name, index], axis=axis)


def _scatter(graph: Graph) -> None:
    name = graph.pick("f", 1)
    array, axis = graph.values[name], graph.axis(name)
    index = graph.numbers.integers(0, max(array.shape[axis], 1), array.shape)
    update = graph.pick("f", array.ndim) if graph.draw.random() < 0.6 else graph.constant(array * 2)
    graph.add("ScatterElements", [name, graph.constant(index, np.int64), update], axis=axis)


def _own_row(graph: Graph) -> None:
    """x[arange(rows), i], as CLIP and GPT-2 pick the token that stands for a text."""
    name = graph.pick("f", 2)
    array = graph.values[name]
    count = graph.add("Squeeze", [_size_of(graph, name, 0)])
    zero, one = graph.constant(0, np.int64), graph.constant(1, np.int64)
    rows = graph.add("Range", [zero, count, one])
    if graph.draw.random() < 0.3:
        graph.add("Gather", [name, rows], axis=graph.axis(name))
        return
    if graph.draw.random() < 0.7:
        places = graph.add("ArgMax", [graph.pick("f", 2)], axis=1, keepdims=0)
    else:
        places = graph.constant(graph.numbers.integers(0, max(array.shape[1], 1), [ROWS]), np.int64)
    last = graph.constant([1], np.int64)
    columns = [
        graph.add("Unsqueeze", [each, last]) if graph.opset >= 13
        else graph.add("Unsqueeze", [each], axes=[1])
        for each in (rows, places)
    ]  # fmt: skip
    if graph.draw.random() < 0.2:
        graph.draw.shuffle(columns)
    graph.add("GatherND", [name, graph.add("Concat", columns, axis=-1)])


def _top(graph: Graph) -> None:
    name = graph.pick("f", 1)
    axis = graph.axis(name)
    count = graph.draw.randint(1, max(graph.values[name].shape[axis], 1))
    graph.add("TopK", [name, graph.constant([count], np.int64)], outputs=2, axis=axis)


def _one_hot(graph: Graph) -> None:
    name = graph.pick("i")
    axis = graph.draw.randint(-1, graph.values[name].ndim)
    depth, values = (
        graph.constant(graph.draw.choice((ROWS, 5)), np.int64),
        graph.constant([0.0, 1.0], np.float32),
    )
    graph.add("OneHot", [name, depth, values], axis=axis)


def _running(graph: Graph) -> None:
    name = graph.pick("f", 1)
    graph.add("CumSum", [name, graph.constant(graph.axis(name), np.int64)])


def _triangle(graph: Graph) -> None:
    graph.add("Trilu", [graph.pick("f", 2)], upper=graph.draw.choice((0, 1)))


def _einsum(graph: Graph) -> None:
    name = graph.pick("f", 2)
    rank = graph.values[name].ndim
    letters = "abcde"[:rank]
    result = graph.draw.sample(letters, graph.draw.randint(1, rank))
    if graph.draw.random() < 0.5:
        graph.add("Einsum", [name], equation=f"{letters}->{''.join(result)}")
        return
    other = graph.pick("f", 2)
    more = "".join(graph.draw.choice(letters + "xy") for _ in range(graph.values[other].ndim))
    every = sorted(set(letters + more))
    result = graph.draw.sample(every, graph.draw.randint(1, len(every)))
    graph.add("Einsum", [name, other], equation=f"{letters},{more}->{''.join(result)}")


def _convolve(graph: Graph) -> None:
    name = graph.pick("f", 3)
    array = graph.values[name]
    kernel = [graph.draw.choice((1, 2)) for _ in array.shape[2:]]
    filters = graph.constant(
        graph.entries([graph.draw.choice((2, ROWS)), array.shape[1], *kernel], "f")
    )
    graph.add("Conv", [name, filters], strides=[graph.draw.choice((1, 2)) for _ in kernel])


def _pool(graph: Graph) -> None:
    name = graph.pick("f", 3)
    operator = graph.draw.choice(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if operator.startswith("Global"):
        graph.add(operator, [name])
        return
    outputs = graph.draw.choice((1, 2)) if operator == "MaxPool" else 1
    kernel = [graph.draw.choice((1, 2)) for _ in graph.values[name].shape[2:]]
    graph.add(operator, [name], outputs=outputs, kernel_shape=kernel)


def _recur(graph: Graph) -> None:
    name = graph.pick("f", 3)
    _, rows, width = graph.values[name].shape
    operator = graph.draw.choice(("LSTM", "GRU", "RNN"))
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator], 2
    direction = graph.draw.choice(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    weights = [
        graph.constant(graph.entries([ways, gates * hidden, size], "f") * 0.1)
        for size in (width, hidden)
    ]
    state = ["", "", graph.constant(graph.entries([ways, rows, hidden], "f"))]
    more = state if graph.draw.random() < 0.3 else []
    graph.add(operator, [name, *weights, *more], outputs=2, hidden_size=hidden, direction=direction)


def _content(graph: Graph) -> None:
    operator = graph.draw.choice(("NonZero", "Unique", "Compress"))
    if operator == "Compress":
        name = graph.pick("f", 1)
        axis = graph.axis(name)
        condition = graph.entries([graph.values[name].shape[axis]], "b")
        graph.add("Compress", [name, graph.constant(condition)], axis=axis)
    elif operator == "Unique":
        graph.add("Unique", [graph.pick("fi", 1)], outputs=4)
    else:
        graph.add("NonZero", [graph.pick("fib", 1)])


def _condition(graph: Graph) -> None:
    """An If on a size, or on values."""
    name = graph.pick("f", 1)
    if graph.draw.random() < 0.5:
        size = graph.add(
            "Squeeze", [_size_of(graph, name, graph.draw.randrange(graph.values[name].ndim))]
        )
        truth = graph.add("Equal", [size, graph.constant(graph.draw.choice((1, ROWS)), np.int64)])
    else:
        truth = graph.add(
            "Less", [graph.add("ReduceMax", [name], keepdims=0), graph.constant(0.5, np.float32)]
        )
    value = helper.make_empty_tensor_value_info
    branches: dict[str, Any] = {
        key: helper.make_graph(
            [helper.make_node(operator, [name], [f"{key}out"])], key, [], [value(f"{key}out")]
        )
        for key, operator in (
            ("then_branch", "Neg"),
            ("else_branch", graph.draw.choice(("Exp", "Relu"))),
        )
    }
    graph.add("If", [truth], captured=[name], **branches)


STEPS: Sequence[Step] = (
    *[_unary, _binary] * 4, *[_reshape, _reshape_by_shape, _matmul, _transpose, _gather] * 2,
    _compare, _where, _logic, _cast, _gemm, _reduce, _arg, _normalize, _layer_norm, _channel_norm,
    _squeeze, _unsqueeze, _flatten, _expand, _tile, _slice, _slice_to_size, _split, _concat, _pad,
    _embed, _gather_elements, _scatter, _own_row, _top, _one_hot, _running, _triangle, _einsum,
    _convolve, _pool, _recur, _content, _condition,
    _add_positions,
)  # fmt: skip
