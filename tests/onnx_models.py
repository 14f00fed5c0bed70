"""Small ONNX models, each with one behaviour that a test needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 21
IR_VERSION = 10

Shape = Sequence[int | str | None] | None

# Open Inference names to ONNX's element types.
ELEMENT_TYPES: Mapping[str, int] = {
    "BOOL": TensorProto.BOOL,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "FP8E4M3FN": TensorProto.FLOAT8E4M3FN,
    "FP8E4M3FNUZ": TensorProto.FLOAT8E4M3FNUZ,
    "FP8E5M2": TensorProto.FLOAT8E5M2,
    "FP8E5M2FNUZ": TensorProto.FLOAT8E5M2FNUZ,
    "FP8E8M0": TensorProto.FLOAT8E8M0,
    "FP4E2M1": TensorProto.FLOAT4E2M1,
    "INT4": TensorProto.INT4,
    "UINT4": TensorProto.UINT4,
    "INT2": TensorProto.INT2,
    "UINT2": TensorProto.UINT2,
}


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write `model` to `path`, making the folders above it, and return `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def save_with_external_data(model: onnx.ModelProto, path: Path) -> Path:
    """Write `model` to `path` with every initializer in `weights.bin` next to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        model, path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    return path


def mlp(
    *, features: int = 4, hidden: int = 8, classes: int = 3, layers: int = 1, seed: int = 0
) -> onnx.ModelProto:
    """`x` FP32 [N, features] → `y` FP32 [N, classes]: dense layers with ReLU between them."""
    random = np.random.default_rng(seed)
    widths = [features, *[hidden] * layers, classes]
    nodes, weights, last = [], [], "x"
    for layer, (rows, columns) in enumerate(itertools.pairwise(widths)):
        scale = 1 / np.sqrt(rows)
        weights += [
            _weight(f"w{layer}", (random.standard_normal((rows, columns)) * scale).astype("f4")),
            _weight(f"b{layer}", (random.standard_normal(columns) * 0.1).astype("f4")),
        ]
        final = layer == layers
        linear = "y" if final else f"linear{layer}"
        nodes.append(helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [linear]))
        if not final:
            last = f"hidden{layer}"
            nodes.append(helper.make_node("Relu", [linear], [last]))
    return _model(
        nodes, [_tensor("x", "FP32", ["N", features])], [_tensor("y", "FP32", ["N", classes])],
        weights,
    )  # fmt: skip


def identity(datatype: str = "FP32", shape: Shape = ("N", 3)) -> onnx.ModelProto:
    """`x` → `y`, the same values."""
    return _model(
        [helper.make_node("Identity", ["x"], ["y"])],
        [_tensor("x", datatype, shape)],
        [_tensor("y", datatype, shape)],
    )


def times(factor: float) -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` FP32 [N, 3] = x * factor."""
    return _model(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        [_tensor("x", "FP32", ["N", 3])],
        [_tensor("y", "FP32", ["N", 3])],
        [_weight("factor", np.float32(factor))],
    )


def repeated(times: int) -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` FP32 [N, 3 * times]: the row that often."""
    return _model(
        [helper.make_node("Tile", ["x", "repeats"], ["y"])],
        [_tensor("x", "FP32", ["N", 3])],
        [_tensor("y", "FP32", ["N", 3 * times])],
        [_weight("repeats", np.array([1, times], "i8"))],
    )


def untouched(datatype: str, shape: Shape = ("N", 3)) -> onnx.ModelProto:
    """`x` → `x` without a node, for datatypes that Identity does not take."""
    tensor = _tensor("x", datatype, shape)
    return _newest(_model([], [tensor], [tensor], check=False))


def cast(source: str, target: str, shape: Shape = ("N", 3)) -> onnx.ModelProto:
    """`x` of one datatype → `y` of another."""
    node = helper.make_node("Cast", ["x"], ["y"], to=ELEMENT_TYPES[target])
    inputs, outputs = [_tensor("x", source, shape)], [_tensor("y", target, shape)]
    return _newest(_model([node], inputs, outputs, check=False))


def _newest(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` in the newest opset of ONNX Runtime, for the newest datatypes."""
    model.opset_import[0].version, model.ir_version = 25, 13
    return model


def gather(*, size: int = 3) -> onnx.ModelProto:
    """`index` INT64 [N] → `y` FP32 [N]: 10 times it; an index outside ±size fails the run."""
    table = np.arange(size, dtype="f4") * 10
    return _model(
        [helper.make_node("Gather", ["table", "index"], ["y"])],
        [_tensor("index", "INT64", ["N"])],
        [_tensor("y", "FP32", ["N"])],
        [_weight("table", table)],
    )


def table(*, size: int = 3) -> onnx.ModelProto:
    """`index` INT64 [N, 1] → `y` FP32 [N, 1]: 10 times it; one outside ±size fails the run."""
    values = np.arange(size, dtype="f4") * 10
    return _model(
        [helper.make_node("Gather", ["table", "index"], ["y"])],
        [_tensor("index", "INT64", ["N", 1])],
        [_tensor("y", "FP32", ["N", 1])],
        [_weight("table", values)],
    )


def chain_of_tables(*locations: str, size: int = 50_000) -> onnx.ModelProto:
    """`index` INT64 [N, 1] → `y` FP32 [N, 1]: the sum of the external tables' values there."""
    found = [f"found{number}" for number in range(len(locations))]
    weights, nodes = [], []
    for name, location in zip(found, locations, strict=True):
        table = TensorProto(name=f"{name}-table", data_type=TensorProto.FLOAT, dims=[size])
        table.data_location = TensorProto.EXTERNAL
        table.external_data.add(key="location", value=location)
        weights.append(table)
        nodes.append(helper.make_node("Gather", [table.name, "index"], [name]))
    return _model(
        [*nodes, helper.make_node("Sum", found, ["y"])],
        [_tensor("index", "INT64", ["N", 1])],
        [_tensor("y", "FP32", ["N", 1])],
        weights,
        check=False,
    )


def reciprocal() -> onnx.ModelProto:
    """`x` FP32 [N, 1] → `y` FP32 [N, 1] = 1 / x: infinity for 0."""
    return _model(
        [helper.make_node("Reciprocal", ["x"], ["y"])],
        [_tensor("x", "FP32", ["N", 1])],
        [_tensor("y", "FP32", ["N", 1])],
    )


def slow(*, nodes: int = 200, size: int = 256) -> onnx.ModelProto:
    """`x` FP32 [N, 4] → `y` FP32 [N, 4] = x + 0, through a long chain of products of matrices.

    Each of the `nodes` takes about 0.12 ms at `size` 256 and 1 ms at 512 (one core), for any number
    of rows. A run can be ended between two of them. The answer waits for the last.
    """
    chain, last = [], "seed"
    for step in range(nodes):
        chain.append(helper.make_node("MatMul", [last, "turn"], [f"step{step}"]))
        last = f"step{step}"
    turn = np.roll(np.eye(size, dtype="f4"), 1, axis=1)
    body = [
        # The seed hangs on the input, or the runtime would fold the chain away when it loads.
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "eye"], ["seed"]),
        *chain,
        helper.make_node("Mul", [last, "zero"], ["end"]),
        helper.make_node("ReduceMax", ["end"], ["late"], keepdims=0),
        helper.make_node("Add", ["x", "late"], ["y"]),
    ]
    return _model(
        body,
        [_tensor("x", "FP32", ["N", 4])],
        [_tensor("y", "FP32", ["N", 4])],
        [
            _weight("zero", np.float32(0)),
            _weight("eye", np.eye(size, dtype="f4")),
            _weight("turn", turn),
        ],
    )


def slow_to_open(*, products: int, size: int = 512) -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` FP32 [N, 3] = x + 1, by way of constants.

    ONNX Runtime computes those while it opens the model, 5 ms for each product of matrices at
    `size` 512 (one core). It cannot be stopped before they end.
    """
    chain = [
        helper.make_node("MatMul", [f"step{step}", "turn"], [f"step{step + 1}"])
        for step in range(products)
    ]
    end = [
        helper.make_node("ReduceMax", [f"step{products}"], ["one"], keepdims=0),
        helper.make_node("Add", ["x", "one"], ["y"]),
    ]
    turn = np.roll(np.eye(size, dtype="f4"), 1, axis=1)
    return _model(
        [*chain, *end],
        [_tensor("x", "FP32", ["N", 3])],
        [_tensor("y", "FP32", ["N", 3])],
        [_weight("step0", turn), _weight("turn", turn)],
    )


def rows_sum() -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` FP32 [3], the sum over rows: the output does not follow the rows."""
    return _model(
        [helper.make_node("ReduceSum", ["x", "axis"], ["y"], keepdims=0)],
        [_tensor("x", "FP32", ["N", 3])],
        [_tensor("y", "FP32", [3])],
        [_weight("axis", np.array([0], "i8"))],
    )


def rows_of_its_run() -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` the same, and `rows` INT64 [N]: how many its run had, for each."""
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Shape", ["x"], ["count"], start=0, end=1),
        helper.make_node("Expand", ["count", "count"], ["rows"]),
    ]
    outputs = [_tensor("y", "FP32", ("N", 3)), _tensor("rows", "INT64", ("N",))]
    return _model(nodes, [_tensor("x", "FP32", ("N", 3))], outputs)


def normalized_over_rows() -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` FP32 [N, 3] = x less the mean row: rows change each other."""
    return _model(
        [
            helper.make_node("ReduceMean", ["x", "axis"], ["mean"], keepdims=1),
            helper.make_node("Sub", ["x", "mean"], ["y"]),
        ],
        [_tensor("x", "FP32", ["N", 3])],
        [_tensor("y", "FP32", ["N", 3])],
        [_weight("axis", np.array([0], "i8"))],
    )


def summed_in_a_way_unknown() -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` the same, less the sum over rows, which the proof has no rule for."""
    return _model(
        [
            helper.make_node("Einsum", ["x"], ["sum"], equation="n...->..."),
            helper.make_node("Sub", ["x", "sum"], ["y"]),
        ],
        [_tensor("x", "FP32", ["N", 3])],
        [_tensor("y", "FP32", ["N", 3])],
    )


def recurrent(operator: str = "LSTM", width: int = 2) -> onnx.ModelProto:
    """`x` FP32 [T, N, 3] → `y` FP32 [T, 1, N, `width`], by an LSTM or a GRU: time comes first."""
    gates = {"LSTM": 4, "GRU": 3}[operator]
    return _model(
        [helper.make_node(operator, ["x", "w", "r"], ["y"], hidden_size=width)],
        [_tensor("x", "FP32", ["T", "N", 3])],
        [_tensor("y", "FP32", ["T", 1, "N", width])],
        [
            _weight("w", np.full((1, gates * width, 3), 0.1, "f4")),
            _weight("r", np.full((1, gates * width, width), 0.1, "f4")),
        ],
    )


def dynamically_quantized(
    *, features: int = 8, classes: int = 10, seed: int = 0
) -> onnx.ModelProto:
    """`x` FP32 [N, features] → `y` FP32 [N, classes] in INT8.

    The scale is taken from the whole batch: one outlier row coarsens its neighbours.
    """
    random = np.random.default_rng(seed)
    weights = random.integers(-127, 128, (features, classes)).astype("i1")
    return _model(
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["xq", "x_scale", "x_zero"]),
            helper.make_node("MatMulInteger", ["xq", "w", "x_zero"], ["product"]),
            helper.make_node("Cast", ["product"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["x_scale", "w_scale"], ["scale"]),
            helper.make_node("Mul", ["real", "scale"], ["y"]),
        ],
        [_tensor("x", "FP32", ["N", features])],
        [_tensor("y", "FP32", ["N", classes])],
        [_weight("w", weights), _weight("w_scale", np.float32(1 / 127))],
    )


def fixed_rows(rows: int = 2) -> onnx.ModelProto:
    """`x` FP32 [rows, 3] → `y` FP32 [rows, 3] = 2 · x: axis 0 has a fixed length."""
    return _model(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [_tensor("x", "FP32", [rows, 3])],
        [_tensor("y", "FP32", [rows, 3])],
    )


def scalar() -> onnx.ModelProto:
    """`x` FP32 [] → `y` FP32 [] = 2 · x: no axis 0 at all."""
    return _model(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [_tensor("x", "FP32", [])],
        [_tensor("y", "FP32", [])],
    )


def unknown_rank() -> onnx.ModelProto:
    """`x` FP32 of any rank → `y` FP32 = 2 · x."""
    return _model(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [_tensor("x", "FP32", None)],
        [_tensor("y", "FP32", None)],
        check=False,  # ONNX asks inputs for a shape; converters leave it out all the same
    )


def two_inputs(width: int = 2) -> onnx.ModelProto:
    """`a`, `b` FP32 [N, width] → `sum` = a + b and `difference` = a - b, FP32 [N, width]."""
    shape: Shape = ("N", width)
    return _model(
        [
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Sub", ["a", "b"], ["difference"]),
        ],
        [_tensor("a", "FP32", shape), _tensor("b", "FP32", shape)],
        [_tensor("sum", "FP32", shape), _tensor("difference", "FP32", shape)],
    )


def image_classifier() -> onnx.ModelProto:
    """`image` FP32 [N, 3, 224, 224] → `scores` FP32 [N, 10], by the image's mean color."""
    weights = np.random.default_rng(0).standard_normal((3, 10)).astype(np.float32)
    return _model(
        [
            helper.make_node("GlobalAveragePool", ["image"], ["means"]),
            helper.make_node("Flatten", ["means"], ["colors"]),
            helper.make_node("MatMul", ["colors", "weights"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["scores"]),
        ],
        [_tensor("image", "FP32", ("N", 3, 224, 224))],
        [_tensor("scores", "FP32", ("N", 10))],
        [_weight("weights", weights)],
    )


def with_defaults(*, optional: int = 1, ir_version: int = IR_VERSION) -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` FP32 [N, 3] = x · factor + bias1 + bias2 …, whose defaults are 2 and 0.

    The weights `factor` FP32 [] and, from `optional` 2 on, `bias1` … FP32 [3] are also inputs.
    """
    names = [f"bias{number}" for number in range(1, optional)]
    values = [f"sum{number}" for number in range(1, optional)] + ["y"]
    nodes = [helper.make_node("Mul", ["x", "factor"], [values[0]])]
    nodes += [
        helper.make_node("Add", [before, name], [after])
        for before, name, after in zip(values, names, values[1:], strict=False)
    ]
    model = _model(
        nodes,
        [_tensor("x", "FP32", ("N", 3)), _tensor("factor", "FP32", ())]
        + [_tensor(name, "FP32", (3,)) for name in names],
        [_tensor("y", "FP32", ("N", 3))],
        [_weight("factor", np.float32(2))] + [_weight(name, np.zeros(3, "f4")) for name in names],
    )
    model.ir_version = ir_version
    return model


def optional(model: onnx.ModelProto, name: str, value: NDArray[np.generic]) -> onnx.ModelProto:
    """Return the same with a default for one of its inputs."""
    model.graph.initializer.append(_weight(name, value))
    return model


def with_default_sum() -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` FP32 [N, 3] = x + the sum of `terms` FP32 [M], whose default is [0]."""
    return optional(
        _model(
            [
                helper.make_node("ReduceSum", ["terms"], ["sum"], keepdims=0),
                helper.make_node("Add", ["x", "sum"], ["y"]),
            ],
            [_tensor("x", "FP32", ("N", 3)), _tensor("terms", "FP32", ("M",))],
            [_tensor("y", "FP32", ("N", 3))],
        ),
        "terms",
        np.zeros(1, "f4"),
    )


def no_inputs() -> onnx.ModelProto:
    """→ `y` FP32 [3] = 1, 2, 3: a model that takes nothing."""
    return _model(
        [helper.make_node("Identity", ["c"], ["y"])],
        [],
        [_tensor("y", "FP32", [3])],
        [_weight("c", np.array([1, 2, 3], "f4"))],
    )


def strings() -> onnx.ModelProto:
    """`text` BYTES [N, 1] → `same` BYTES [N, 1] and `code` INT64 [N, 1]: cat 1, dog 2, other -1."""
    return _model(
        [
            helper.make_node("Identity", ["text"], ["same"]),
            helper.make_node(
                "LabelEncoder", ["text"], ["code"], domain="ai.onnx.ml",
                keys_strings=["cat", "dog"], values_int64s=[1, 2], default_int64=-1,
            ),
        ],
        [_tensor("text", "BYTES", ["N", 1])],
        [_tensor("same", "BYTES", ["N", 1]), _tensor("code", "INT64", ["N", 1])],
        ml=True,
    )  # fmt: skip


def known_bytes(*known: bytes) -> onnx.ModelProto:
    """`x` BYTES [N] → `y` BOOL [N]: whether it is one of two, to the last byte."""
    nodes, weights = [], []
    for number, one in enumerate(known):
        # Not by helper.make_tensor, which leaves out zeros at the end.
        weights.append(
            onnx.TensorProto(
                name=f"c{number}", data_type=TensorProto.STRING, dims=[1], string_data=[one]
            )
        )
        nodes.append(helper.make_node("Equal", ["x", f"c{number}"], [f"is{number}"]))
    nodes.append(helper.make_node("Or", ["is0", "is1"], ["y"]))
    return _model(nodes, [_tensor("x", "BYTES", ["N"])], [_tensor("y", "BOOL", ["N"])], weights)


def decoded_image() -> onnx.ModelProto:
    """`image` UINT8 [bytes], a file → `pixels` UINT8 [H, W, 3], by onnxruntime-extensions."""
    domain = "com.microsoft.extensions"
    model = _model(
        [helper.make_node("DecodeImage", ["image"], ["pixels"], domain=domain)],
        [_tensor("image", "UINT8", ["bytes"])],
        [_tensor("pixels", "UINT8", ["H", "W", 3])],
        check=False,  # it knows no operators but ONNX's own
    )
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def decoders_library() -> Path:
    """Return the library of onnxruntime-extensions, found without importing it.

    That would have this process, and each that it starts, use protobuf in pure Python.
    """
    spec = find_spec("onnxruntime_extensions")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("_extensions_pydll*.so"))


def people(shape: Shape) -> onnx.ModelProto:
    """`name` BYTES, `age` INT64 → `same` = name and `older` = age + 1, all of one shape."""
    return _model(
        [
            helper.make_node("Identity", ["name"], ["same"]),
            helper.make_node("Add", ["age", "one"], ["older"]),
        ],
        [_tensor("name", "BYTES", shape), _tensor("age", "INT64", shape)],
        [_tensor("same", "BYTES", shape), _tensor("older", "INT64", shape)],
        [_weight("one", np.int64(1))],
    )


def variable_length(*, words: int = 50, width: int = 6, seed: int = 0) -> onnx.ModelProto:
    """`input_ids` INT64 [N, L] → `embedding` FP32 [N, width]: the mean of the words' vectors.

    Word 0 is padding and counts for nothing, so a padded row equals the unpadded one.
    """
    table = np.random.default_rng(seed).standard_normal((words, width)).astype("f4")
    return _model(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["vectors"]),
            helper.make_node("Equal", ["input_ids", "padding"], ["is_padding"]),
            helper.make_node("Not", ["is_padding"], ["is_word"]),
            helper.make_node("Cast", ["is_word"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
            helper.make_node("Mul", ["vectors", "mask3"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "one"], ["total"], keepdims=0),
            helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=1),
            helper.make_node("Max", ["count", "at_least"], ["divisor"]),
            helper.make_node("Div", ["total", "divisor"], ["embedding"]),
        ],
        [_tensor("input_ids", "INT64", ["N", "L"])],
        [_tensor("embedding", "FP32", ["N", width])],
        [
            _weight("table", table),
            _weight("padding", np.int64(0)),
            _weight("last", np.array([-1], "i8")),
            _weight("one", np.array([1], "i8")),
            _weight("at_least", np.float32(1)),
        ],
    )


def uncounted() -> onnx.ModelProto:
    """`n` INT64 [N, 1] → `y` FP32 [N, 1] = n, as `loop`, at once."""
    return _model(
        [helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT)],
        [_tensor("n", "INT64", ["N", 1])],
        [_tensor("y", "FP32", ["N", 1])],
    )


FOREVER = 10**15
"""Trips of a `loop` that never ends within a test."""


def loop(*, nested: bool = False) -> onnx.ModelProto:
    """`n` INT64 [N, 1] → `y` FP32 [N, 1] = n, counted in a Loop of as many trips as max(n).

    `nested` puts the Loop into the taken branch of an If inside a function of the model's own.
    """
    scalar = [_tensor("i", "INT64", []), _tensor("go", "BOOL", []), _tensor("was", "INT64", [])]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["still"]),
            helper.make_node("Add", ["was", "one"], ["is"]),
        ],
        "body",
        scalar,
        [_tensor("still", "BOOL", []), _tensor("is", "INT64", [])],
    )
    counting = helper.make_node("Loop", ["trips", "true", "zero"], ["counted"], body=body)
    constants = [
        helper.make_node("Constant", [], [name], value=_weight(name, value))
        for name, value in (
            ("true", np.array(True)), ("zero", np.int64(0)), ("one", np.int64(1)),
        )
    ]  # fmt: skip
    outputs = [_tensor("counted", "INT64", [])]
    functions = []
    if nested:
        branch = helper.make_graph([counting], "then", [], outputs)
        other = helper.make_graph(
            [helper.make_node("Identity", ["zero"], ["none"])], "else", [],
            [_tensor("none", "INT64", [])],
        )  # fmt: skip
        choice = helper.make_node(
            "If", ["true"], ["counted"], then_branch=branch, else_branch=other
        )
        functions.append(
            helper.make_function(
                "tests", "Count", ["trips"], ["counted"], [*constants, choice],
                [helper.make_opsetid("", OPSET)],
            )
        )  # fmt: skip
        counting = helper.make_node("Count", ["trips"], ["counted"], domain="tests")
    model = _model(
        [
            *([] if nested else constants),
            helper.make_node("ReduceMax", ["n"], ["trips"], keepdims=0),
            counting,
            helper.make_node("Cast", ["counted"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["n"], ["same"], to=TensorProto.FLOAT),
            helper.make_node("Min", ["same", "real"], ["y"]),
        ],
        [_tensor("n", "INT64", ["N", 1])],
        [_tensor("y", "FP32", ["N", 1])],
        check=False,
    )
    model.functions.extend(functions)
    if nested:
        model.opset_import.append(helper.make_opsetid("tests", 1))
    onnx.checker.check_model(model)
    return model


def endless() -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` FP32 [N, 3], negated 10^15 times, whatever the input."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["still"]),
            helper.make_node("Neg", ["was"], ["is"]),
        ],
        "body",
        [_tensor("i", "INT64", []), _tensor("go", "BOOL", []), _tensor("was", "FP32", None)],
        [_tensor("still", "BOOL", []), _tensor("is", "FP32", None)],
    )
    return _model(
        [helper.make_node("Loop", ["trips", "true", "x"], ["y"], body=body)],
        [_tensor("x", "FP32", ["N", 3])],
        [_tensor("y", "FP32", ["N", 3])],
        [_weight("trips", np.int64(FOREVER)), _weight("true", np.array(True))],
    )


def growing_with_rows(*, loops: bool) -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` FP32 [N, 3]: harmless with one row.

    loops: If true, each further row negates `x` 10^15 times; if false, it takes 10^10 FP32 numbers
        of memory.
    """
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"], end=1),
        helper.make_node("Sub", ["rows", "one"], ["further"]),
        helper.make_node("Mul", ["further", "much"], ["count"]),
    ]
    much = FOREVER if loops else 10**10
    weights = [_weight("one", np.array([1], "i8")), _weight("much", np.array([much], "i8"))]
    if loops:
        body = endless().graph.node[0].attribute[0].g
        nodes.append(helper.make_node("Loop", ["count", "true", "x"], ["y"], body=body))
        weights.append(_weight("true", np.array(True)))
    else:
        nodes += [
            helper.make_node("ConstantOfShape", ["count"], ["many"]),
            helper.make_node("ReduceSum", ["many"], ["sum"], keepdims=0),
            helper.make_node("Add", ["x", "sum"], ["y"]),
        ]
    return _model(
        nodes, [_tensor("x", "FP32", ["N", 3])], [_tensor("y", "FP32", ["N", 3])], weights
    )


def hoard(elements: int) -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y` FP32 [N, 3], by way of `elements` FP32 that are in no file."""
    return _model(
        [
            helper.make_node("ConstantOfShape", ["size"], ["many"]),
            helper.make_node("ReduceSum", ["many"], ["sum"], keepdims=0),
            helper.make_node("Add", ["x", "sum"], ["y"]),
        ],
        [_tensor("x", "FP32", ["N", 3])],
        [_tensor("y", "FP32", ["N", 3])],
        [_weight("size", np.array([elements], "i8"))],
    )


def fill(*, growing: int = 1) -> onnx.ModelProto:
    """`n` INT64 [N, 1] → `y` FP32 [M]: ones, as many as the largest n times `growing`."""
    return _model(
        [
            helper.make_node("ReduceMax", ["n"], ["largest"], keepdims=0),
            helper.make_node("Mul", ["largest", "times"], ["count"]),
            helper.make_node("Reshape", ["count", "one"], ["shape"]),
            helper.make_node("Expand", ["value", "shape"], ["y"]),
        ],
        [_tensor("n", "INT64", ["N", 1])],
        [_tensor("y", "FP32", [None])],
        [
            _weight("one", np.array([1], "i8")),
            _weight("times", np.int64(growing)),
            _weight("value", np.float32(1)),
        ],
    )


def explosive() -> onnx.ModelProto:
    """`x` FP32 [N, L] → `y` FP32 [1] = 0, the sum of 32,000,000 zeros for each of L beyond 16."""
    return _model(
        [
            helper.make_node("Shape", ["x"], ["length"], start=1),
            helper.make_node("Sub", ["length", "known"], ["longer"]),
            helper.make_node("Max", ["longer", "nothing"], ["beyond"]),
            helper.make_node("Mul", ["beyond", "many"], ["count"]),
            helper.make_node("ConstantOfShape", ["count"], ["zeros"]),
            helper.make_node("ReduceSum", ["zeros"], ["y"]),
        ],
        [_tensor("x", "FP32", ["N", "L"])],
        [_tensor("y", "FP32", [1])],
        [
            _weight("known", np.array([16], "i8")),
            _weight("nothing", np.array([0], "i8")),
            _weight("many", np.array([32_000_000], "i8")),
        ],
    )


def one_long_node() -> onnx.ModelProto:
    """`n` INT64 [1] → `kept` INT64 [n, 3], by comparing each of n boxes with all others, in a node.

    It cannot be interrupted: with n 40,000 it takes a second or more.
    """
    return _model(
        [
            helper.make_node("Squeeze", ["n", "first"], ["count"]),
            helper.make_node("Range", ["zero", "count", "one"], ["numbers"]),
            helper.make_node("Cast", ["numbers"], ["scores"], to=TensorProto.FLOAT),
            helper.make_node("Reshape", ["scores", "column"], ["left"]),
            helper.make_node("Add", ["left", "half"], ["right"]),
            helper.make_node("Mul", ["left", "nothing"], ["top"]),
            helper.make_node("Add", ["top", "half"], ["bottom"]),
            helper.make_node("Concat", ["top", "left", "bottom", "right"], ["boxes"], axis=2),
            helper.make_node("Reshape", ["scores", "row"], ["ranked"]),
            helper.make_node("NonMaxSuppression", ["boxes", "ranked", "n", "share"], ["kept"]),
        ],
        [_tensor("n", "INT64", [1])],
        [_tensor("kept", "INT64", [None, 3])],
        [
            _weight("first", np.array([0], "i8")),
            _weight("zero", np.int64(0)),
            _weight("one", np.int64(1)),
            _weight("column", np.array([1, -1, 1], "i8")),
            _weight("row", np.array([1, 1, -1], "i8")),
            _weight("half", np.float32(0.5)),
            _weight("nothing", np.float32(0)),
            _weight("share", np.array([0.5], "f4")),
        ],
    )


def reshaped() -> onnx.ModelProto:
    """`x` FP32 [N, 4] → `y` FP32 [N, 4] = 2 · x, by sizes that are computed from x's shape."""
    return _model(
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "first"], ["rows"]),
            helper.make_node("Concat", ["rows", "four"], ["wanted"], axis=0),
            helper.make_node("ConstantOfShape", ["wanted"], ["zeros"]),
            helper.make_node("Expand", ["x", "wanted"], ["same"]),
            helper.make_node("Add", ["same", "zeros"], ["sum"]),
            helper.make_node("Reshape", ["sum", "wanted"], ["again"]),
            helper.make_node("Add", ["again", "x"], ["y"]),
        ],
        [_tensor("x", "FP32", ["N", 4])],
        [_tensor("y", "FP32", ["N", 4])],
        [_weight("first", np.array([0], "i8")), _weight("four", np.array([4], "i8"))],
    )


def sequence() -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `rows`, a sequence of tensors: an output that no wire format carries."""
    rows = helper.make_tensor_sequence_value_info("rows", TensorProto.FLOAT, None)
    return _model(
        [helper.make_node("SplitToSequence", ["x"], ["rows"], axis=0)],
        [_tensor("x", "FP32", ["N", 3])],
        [rows],
    )


def several_targets(targets: int = 2) -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `y`, the same, and `scores`: a sequence of k * x for k = 1, 2, …

    As scikit-learn's exporter writes a MultiOutputClassifier.
    """
    factors = [
        numpy_helper.from_array(np.array([one], np.float32), f"k{one}")
        for one in range(1, targets + 1)
    ]
    made = [f"s{one}" for one in range(1, targets + 1)]
    nodes = [helper.make_node("Mul", ["x", f"k{at}"], [name]) for at, name in enumerate(made, 1)]
    nodes += [
        helper.make_node("SequenceConstruct", made, ["scores"]),
        helper.make_node("Identity", ["x"], ["y"]),
    ]
    scores = helper.make_tensor_sequence_value_info("scores", TensorProto.FLOAT, None)
    x, y = (_tensor(name, "FP32", ["N", 3]) for name in "xy")
    return _model(nodes, [x], [y, scores], factors)


def sequence_and_tensor() -> onnx.ModelProto:
    """`x` FP32 [N, 3] → `rows`, a sequence of tensors, and `y` FP32 [N, 3], the same values."""
    model = sequence()
    model.graph.node.append(helper.make_node("Identity", ["x"], ["y"]))
    model.graph.output.append(_tensor("y", "FP32", ["N", 3]))
    return model


def doubling_functions(domain: str, count: int, calls: int = 2) -> list[onnx.FunctionProto]:
    """`F0` negates its input `calls` times; each of the others calls the one before as often."""
    made = []
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
    for number in range(count):
        called, where = (f"F{number - 1}", domain) if number else ("Neg", "")
        values = ["x", *(f"v{call}" for call in range(1, calls)), "y"]
        nodes = [
            helper.make_node(called, [values[call]], [values[call + 1]], domain=where)
            for call in range(calls)
        ]
        made.append(helper.make_function(domain, f"F{number}", ["x"], ["y"], nodes, imports))
    return made


def calling_functions(count: int, calls: int = 2) -> onnx.ModelProto:
    """`x` FP32 [N, 3] through the last of `doubling_functions`: calls ** count nodes."""
    node = helper.make_node(f"F{count - 1}", ["x"], ["y"], domain="tests")
    x, y = (_tensor(name, "FP32", ("N", 3)) for name in "xy")
    return helper.make_model(
        helper.make_graph([node], "functions", [x], [y]),
        functions=doubling_functions("tests", count, calls),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("tests", 1)],
        ir_version=IR_VERSION,
    )


def texts_of(*, rank: int = 1) -> onnx.ModelProto:
    """`n` INT64 [rank] → `y` BYTES of that shape, all "7"."""
    y = helper.make_tensor_value_info("y", TensorProto.STRING, [f"d{axis}" for axis in range(rank)])
    nodes = [
        helper.make_node("Constant", [], ["seven"], value=_weight("seven", np.array([7]))),
        helper.make_node("Cast", ["seven"], ["text"], to=TensorProto.STRING),
        helper.make_node("Expand", ["text", "n"], ["y"]),
    ]
    return _model(nodes, [_tensor("n", "INT64", (rank,))], [y])


def divide(
    operator: str = "Div", dtype: str = "INT64", *, function: bool = False
) -> onnx.ModelProto:
    """`a`, `b` of whole numbers [N] → `y`: a divided by b, or what remains (Mod).

    `function` puts it into a function of the model, where types are not declared.
    """
    a, b, y = (_tensor(name, dtype, ("N",)) for name in "aby")
    node = helper.make_node(operator, ["a", "b"], ["y"])
    if not function:
        return _model([node], [a, b], [y])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("tests", 1)]
    body = helper.make_function("tests", "Share", ["a", "b"], ["y"], [node], opsets[:1])
    call = helper.make_node("Share", ["a", "b"], ["y"], domain="tests")
    return helper.make_model(
        helper.make_graph([call], "functions", [a, b], [y]),
        functions=[body], opset_imports=opsets, ir_version=IR_VERSION,
    )  # fmt: skip


def describe(model: onnx.ModelProto, properties: Mapping[str, str]) -> onnx.ModelProto:
    """`model` with producer, domain, description and `properties` filled in."""
    model.producer_name, model.producer_version = "cohort-tests", "1.2.3"
    model.domain, model.doc_string = "org.example", "What it is."
    helper.set_model_props(model, dict(properties))
    return model


def _model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
    *,
    ml: bool = False,
    check: bool = True,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "graph", inputs, outputs, list(weights))
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid("ai.onnx.ml", 4)] * ml)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    if check:
        onnx.checker.check_model(model)
    return model


def _tensor(name: str, datatype: str, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[datatype], shape)


def _weight(name: str, value: NDArray[np.generic] | np.generic) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def detections() -> onnx.ModelProto:
    """`x` FP32 [N, K, 6] → `boxes` [N, K, 4], `scores` [N, K], `classes` INT64 [N, K]: its columns.

    `packed` is x itself.
    """
    nodes = [
        helper.make_node("Split", ["x", "sizes"], ["boxes", "score", "number"], axis=2),
        helper.make_node("Squeeze", ["score", "last"], ["scores"]),
        helper.make_node("Squeeze", ["number", "last"], ["class"]),
        helper.make_node("Cast", ["class"], ["classes"], to=TensorProto.INT64),
        helper.make_node("Identity", ["x"], ["packed"]),
    ]
    outputs = [
        _tensor("boxes", "FP32", ["N", "K", 4]),
        _tensor("scores", "FP32", ["N", "K"]),
        _tensor("classes", "INT64", ["N", "K"]),
        _tensor("packed", "FP32", ["N", "K", 6]),
    ]
    weights = [_weight("sizes", np.array([4, 1, 1], "i8")), _weight("last", np.array([2], "i8"))]
    return _model(nodes, [_tensor("x", "FP32", ["N", "K", 6])], outputs, weights)


def boxes_of_one_picture() -> onnx.ModelProto:
    """`x` FP32 [N, 4] → `boxes`, the same, and `scores` FP32 [N], the sum of each row."""
    nodes = [
        helper.make_node("Identity", ["x"], ["boxes"]),
        helper.make_node("ReduceSum", ["x", "last"], ["scores"], keepdims=0),
    ]
    outputs = [_tensor("boxes", "FP32", ["N", 4]), _tensor("scores", "FP32", ["N"])]
    return _model(
        nodes, [_tensor("x", "FP32", ["N", 4])], outputs, [_weight("last", np.array([1], "i8"))]
    )


def scores_by_class(
    classes: Sequence[int] | Sequence[str] = ("cat", "dog", "eel"), *, labels: int | None = None
) -> onnx.ModelProto:
    """`x` FP32 [N, 2] → `label` and `scores`, as scikit-learn's exporter writes a classifier.

    `scores` is a sequence of dictionaries, one for each row. `labels` is the length that `label`
    declares; default None: any. It imports no operators but those of ai.onnx.ml.
    """
    of_text = isinstance(classes[0], str)
    named: Any = {"classlabels_strings" if of_text else "classlabels_int64s": list(classes)}
    fitted: Any = {"classlabels_strings" if of_text else "classlabels_ints": list(classes)}
    kind = TensorProto.STRING if of_text else TensorProto.INT64
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "columns"], domain="ai.onnx.ml",
            coefficients=[float(one) for one in range(2 * len(classes))],
            intercepts=[0.0] * len(classes), post_transform="SOFTMAX",
            **fitted,
        ),
        helper.make_node("ZipMap", ["columns"], ["scores"], domain="ai.onnx.ml", **named),
    ]  # fmt: skip
    score = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    scores = helper.make_sequence_type_proto(helper.make_map_type_proto(kind, score))
    outputs = [
        helper.make_tensor_value_info("label", kind, [labels]),
        helper.make_value_info("scores", scores),
    ]
    graph = helper.make_graph(nodes, "classifier", [_tensor("x", "FP32", ["N", 2])], outputs)
    imports = [helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
