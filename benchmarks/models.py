"""The models of the benchmark, made on the spot with `onnx.helper` and random weights.

They cost what their namesakes cost, which is all that a serving benchmark needs; what they answer
means nothing. They land in build/bench/models, never in the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Array = NDArray[np.generic]
Shape = Sequence[int | str]

OPSET, IR_VERSION = 21, 10

ENCODER_LAYERS, ENCODER_WIDTH, ENCODER_HEADS = 6, 384, 12
VOCABULARY, POSITIONS = 30522, 512


@dataclass
class Graph:
    """A graph under construction; weights are drawn from one seeded source."""

    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and give its output's name."""
        name = f"{kind.lower()}{len(self.nodes)}"
        domain = attributes.pop("domain", None)
        self.nodes.append(
            helper.make_node(kind, inputs, [name], domain=str(domain or ""), **attributes)
        )
        return name

    def constant(self, value: Array | Sequence[int] | float) -> str:
        name = f"c{len(self.weights)}"
        array = np.asarray(value)
        kind = np.float32 if array.dtype.kind == "f" else np.int64
        self.weights.append(numpy_helper.from_array(array.astype(kind), name))
        return name

    def drawn(self, *shape: int, scale: float) -> str:
        return self.constant(self.random.standard_normal(shape, np.float32) * scale)

    def finish(
        self, inputs: Sequence[ValueInfoProto], outputs: Mapping[str, ValueInfoProto]
    ) -> onnx.ModelProto:
        """Close the graph; `outputs` are by the node output each takes its value from."""
        for source, info in outputs.items():
            self.nodes.append(helper.make_node("Identity", [source], [info.name]))
        graph = helper.make_graph(self.nodes, "bench", inputs, list(outputs.values()), self.weights)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", 3)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        return model


def _real(name: str, shape: Shape) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _whole(name: str, shape: Shape) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def mlp() -> onnx.ModelProto:
    """`x` FP32 [N, 10] → `y` FP32 [N, 5]: one hidden layer of 16."""
    graph = Graph()
    hidden = graph.add("Gemm", "x", graph.drawn(10, 16, scale=0.3), graph.drawn(16, scale=0.1))
    last = graph.add(
        "Gemm", graph.add("Relu", hidden), graph.drawn(16, 5, scale=0.3), graph.drawn(5, scale=0.1)
    )
    return graph.finish([_real("x", ["N", 10])], {last: _real("y", ["N", 5])})


def echo(width: int = 150_000) -> onnx.ModelProto:
    """`x` FP32 [N, 150000] → `y`, the same: 600 KB that cost nothing to run."""
    graph = Graph()
    return graph.finish(
        [_real("x", ["N", width])], {graph.add("Identity", "x"): _real("y", ["N", width])}
    )


def means() -> onnx.ModelProto:
    """`image` FP32 [N, 3, 224, 224] → `mean` FP32 [N, 3]: next to nothing to run."""
    graph = Graph()
    mean = graph.add("ReduceMean", "image", graph.constant([2, 3]), keepdims=0)
    return graph.finish([_real("image", ["N", 3, 224, 224])], {mean: _real("mean", ["N", 3])})


def forest(trees: int = 100, *, features: int = 10, classes: int = 5) -> onnx.ModelProto:
    """`x` FP32 [N, 10] → `label` INT64 [N], `probabilities` FP32 [N, 5]: scikit-learn's trees."""
    from sklearn.datasets import make_classification  # noqa: PLC0415 - slow, and only here
    from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415

    data, target = make_classification(
        1000, features, n_informative=6, n_classes=classes, random_state=0
    )
    grown = RandomForestClassifier(trees, random_state=0).fit(data.astype("f4"), target)
    nodes: dict[str, Any] = {
        f"nodes_{name}": []
        for name in (
            "treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids"
        )
    }  # fmt: skip
    votes: dict[str, Any] = {
        f"class_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")
    }
    for number, tree in enumerate(one.tree_ for one in grown.estimators_):
        for node in range(tree.node_count):
            leaf = tree.children_left[node] < 0
            row = (
                number, node, 0 if leaf else int(tree.feature[node]),
                "LEAF" if leaf else "BRANCH_LEQ", 0.0 if leaf else float(tree.threshold[node]),
                0 if leaf else int(tree.children_left[node]),
                0 if leaf else int(tree.children_right[node]),
            )  # fmt: skip
            for column, value in zip(nodes.values(), row, strict=True):
                column.append(value)
            if leaf:
                counts = tree.value[node][0]
                for kind, share in enumerate(counts / counts.sum()):
                    vote = (number, node, kind, float(share) / trees)
                    for column, value in zip(votes.values(), vote, strict=True):
                        column.append(value)
    graph = Graph()
    graph.nodes.append(
        helper.make_node(
            "TreeEnsembleClassifier", ["x"], ["class", "votes"], domain="ai.onnx.ml",
            post_transform="NONE", classlabels_int64s=list(range(classes)), **nodes, **votes,
        )
    )  # fmt: skip
    return graph.finish(
        [_real("x", ["N", features])],
        {"class": _whole("label", ["N"]), "votes": _real("probabilities", ["N", classes])},
    )


def resnet50() -> onnx.ModelProto:
    """`image` FP32 [N, 3, 224, 224] → `logits` FP32 [N, 1000].

    25.6 M weights, 4.1 G multiplications. Batch normalization is folded into the
    convolutions, as exporters for inference do.
    """
    graph = Graph()

    def convolve(x: str, into: int, out: int, kernel: int, stride: int, gain: float = 2.0) -> str:
        weights = graph.drawn(
            out, into, kernel, kernel, scale=float(np.sqrt(gain / (into * kernel * kernel)))
        )
        bias = graph.constant(np.zeros(out, np.float32))
        return graph.add(
            "Conv", x, weights, bias,
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4,
        )  # fmt: skip

    x = graph.add("Relu", convolve("image", 3, 64, 7, 2))
    x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    into = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            y = graph.add("Relu", convolve(x, into, width, 1, 1))
            y = graph.add("Relu", convolve(y, width, width, 3, stride))
            y = convolve(y, width, 4 * width, 1, 1, gain=0.2)  # or 16 sums would grow without end
            if block == 0:
                x = convolve(x, into, 4 * width, 1, stride, gain=1.0)
            x = graph.add("Relu", graph.add("Add", x, y))
            into = 4 * width
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    x = graph.add("Gemm", x, graph.drawn(into, 1000, scale=0.02), graph.drawn(1000, scale=0.01))
    return graph.finish([_real("image", ["N", 3, 224, 224])], {x: _real("logits", ["N", 1000])})


def encoder(
    layers: int = ENCODER_LAYERS, width: int = ENCODER_WIDTH, heads: int = ENCODER_HEADS, *,
    classes: int | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """`input_ids`, `attention_mask` INT64 [N, L] → `embedding` FP32 [N, 384]: as MiniLM-L6.

    classes: Columns of an output `logits` in its place; default None: there is none.
    """
    graph = Graph()
    size = width // heads

    def linear(x: str, into: int, out: int) -> str:
        product = graph.add("MatMul", x, graph.drawn(into, out, scale=into**-0.5))
        return graph.add("Add", product, graph.drawn(out, scale=0.02))

    def normalized(x: str) -> str:
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return graph.add(
            "LayerNormalization", x, graph.constant(ones), graph.constant(zeros), axis=-1
        )

    split = graph.constant([0, 0, heads, size])
    joined = graph.constant([0, 0, width])
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden = graph.add("Mul", graph.add("Sub", graph.constant(1.0), mask), graph.constant(-1e4))
    hidden = graph.add("Unsqueeze", hidden, graph.constant([1, 2]))
    x = graph.add("Gather", graph.drawn(VOCABULARY, width, scale=0.05), "input_ids")
    length = graph.add("Shape", "input_ids", start=1, end=2)
    places = graph.add(
        "Slice", graph.drawn(POSITIONS, width, scale=0.05), graph.constant([0]), length
    )
    x = normalized(graph.add("Add", x, places))
    for _ in range(layers):
        turns = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        query, key, value = (
            graph.add("Transpose", graph.add("Reshape", linear(x, width, width), split), perm=turn)
            for turn in turns
        )
        score = graph.add("Mul", graph.add("MatMul", query, key), graph.constant(size**-0.5))
        heed = graph.add("Softmax", graph.add("Add", score, hidden), axis=-1)
        seen = graph.add("Transpose", graph.add("MatMul", heed, value), perm=[0, 2, 1, 3])
        seen = linear(graph.add("Reshape", seen, joined), width, width)
        x = normalized(graph.add("Add", x, seen))
        wide = graph.add("Gelu", linear(x, width, 4 * width))
        x = normalized(graph.add("Add", x, linear(wide, 4 * width, width)))
    mask = graph.add("Unsqueeze", mask, graph.constant([2]))
    one = graph.constant([1])
    total = graph.add("ReduceSum", graph.add("Mul", x, mask), one, keepdims=0)
    count = graph.add("ReduceSum", mask, one, keepdims=0)
    mean = graph.add("Div", total, count)
    ids = [_whole(name, ["N", "L"]) for name in ("input_ids", "attention_mask")]
    if classes is not None:
        logits = linear(mean, width, classes)
        return graph.finish(ids, {logits: _real("logits", ["N", classes])})
    return graph.finish(ids, {mean: _real("embedding", ["N", width])})


BUILDERS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "mlp": mlp, "echo": echo, "means": means, "forest": forest, "resnet50": resnet50,
    "encoder": encoder,
}  # fmt: skip

CONFIGS: Mapping[str, str] = {
    "encoder": "batching:\n  pad:\n"
    "    input_ids: {axis: 1, value: 0, multiple: 16}\n"
    "    attention_mask: {axis: 1, value: 0, multiple: 16}\n",
}


def build(name: str, folder: Path) -> Path:
    """Make the model in `folder`/<name>/ as Cohort wants it, unless it is there."""
    path = folder / name / name / "1" / "model.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in CONFIGS:
            (path.parents[1] / "config.yaml").write_text(CONFIGS[name])
        part = path.with_suffix(".part")
        part.write_bytes(BUILDERS[name]().SerializeToString())
        part.rename(path)
    return path
