"""Compare size, speed and outputs of models after each recipe with the model before: as ratios.

    python -m benchmarks.prepare.recipes [MODEL …]

Of the MODELs that are named, by the beginnings of their titles, the lines are printed only.

Models are made here, by `cohort optimize` and `cohort quantize`; sessions are opened as a server
opens them, one thread. Each round runs both, and counts their time on the processor; the range is
that of the rounds' median.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxmltools.convert import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from benchmarks.prepare.page import write_table
from cohort.session import ORT_VERSION, Session, open_session
from cohort.tensors import Array, Arrays
from cohort_prepare.evaluating.timing import compare_in_turn
from cohort_prepare.onnx_files import model_size

ROOT = Path(__file__).parents[2]
SECONDS = 5.0
"""Length of measuring a recipe at a number of rows, in rounds that run both models."""

RECIPES = {
    "optimized": ("optimize",),
    "dynamic": ("quantize", "--recipe", "dynamic"),
    "static": ("quantize", "--recipe", "static"),
    "fp16": ("quantize", "--recipe", "fp16"),
    "int4": ("quantize", "--recipe", "int4"),
}


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and rows with the right answers if there are any."""

    title: str
    path: Path
    rows: tuple[int, int]
    make: Callable[[int], Arrays]
    calibration: Arrays
    test: Arrays
    labels: Array | None


def cases(folder: Path) -> Iterator[Case]:
    """Yield a CNN, an MLP, trees and an encoder."""
    data, labels = load_digits(return_X_y=True)
    split = train_test_split(data, labels, test_size=0.25, random_state=7, stratify=labels)
    train, test, train_labels, test_labels = split
    train, test = train.astype(np.float32), test.astype(np.float32)

    def flat(rows: int) -> Arrays:
        return {"input": test[np.arange(rows) % len(test)]}

    def image(rows: Any) -> Arrays:
        return {"image": (rows / 16).reshape(-1, 1, 8, 8).astype(np.float32)}

    yield Case(
        "digits CNN, 38k weights", ROOT / "models/digits/1/model.onnx", (1, 64),
        lambda rows: image(flat(rows)["input"]), image(train[:300]), image(test), test_labels,
    )  # fmt: skip
    for title, path in (
        ("MLP 64-512-512-10", _mlp(train, train_labels, folder / "mlp.onnx")),
        ("LightGBM, 100 rounds", _trees(train, train_labels, folder / "trees.onnx")),
    ):
        calibration, tested = {"input": train[:300]}, {"input": test}
        yield Case(title, path, (1, 64), flat, calibration, tested, test_labels)
    random = np.random.default_rng(1)

    def words(rows: int) -> Arrays:
        return {"ids": random.integers(0, VOCABULARY, (rows, 128))}

    path = _encoder(folder / "encoder.onnx")
    yield Case("encoder, 22M weights, 128 tokens", path, (1, 8), words, words(16), words(16), None)


def _mlp(rows: Any, labels: Any, path: Path) -> Path:

    model = MLPClassifier((512, 512), max_iter=30, random_state=0).fit(rows / 16, labels)
    made = to_onnx(model, rows[:1], options={"zipmap": False}, target_opset=17)
    return _renamed(made, path)


def _trees(rows: Any, labels: Any, path: Path) -> Path:

    model = lightgbm.LGBMClassifier(n_estimators=100, n_jobs=1, verbose=-1, random_state=0)
    model.fit(rows, labels)
    types = [("input", FloatTensorType([None, rows.shape[1]]))]
    return _renamed(
        convert_lightgbm(model, initial_types=types, zipmap=False, target_opset=15), path
    )


def _renamed(model: onnx.ModelProto, path: Path) -> Path:
    """With the input `input`."""
    old = model.graph.input[0].name
    model.graph.input[0].name = "input"
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = "input"
    onnx.save(model, path)
    return path


VOCABULARY, HIDDEN, WIDE, HEADS, LAYERS = 30522, 384, 1536, 12, 6
"""MiniLM's sizes."""


def _encoder(path: Path) -> Path:
    """Return an encoder with random weights, as exporters write one: no fused operators."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int, scale: float = 0.05, around: float = 0.0) -> str:
        values = (random.standard_normal(shape) * scale + around).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def add(operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], name=f"{output}_", **attributes))
        return output

    for name, values in (
        ("split", [0, 0, HEADS, HIDDEN // HEADS]),
        ("join", [0, 0, HIDDEN]),
    ):
        weights.append(numpy_helper.from_array(np.array(values), name))
    scale = np.array((HIDDEN // HEADS) ** -0.5, np.float32)
    weights.append(numpy_helper.from_array(scale, "scale"))
    x = add("Gather", [weight("words", VOCABULARY, HIDDEN, scale=1.0), "ids"], "embedded")
    for layer in range(LAYERS):
        at = f"layer{layer}."
        parts = {}
        for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            made = add(
                "MatMul", [x, weight(f"{at}{part}.w", HIDDEN, HIDDEN)], f"{at}{part}.product"
            )
            made = add("Add", [made, weight(f"{at}{part}.b", HIDDEN)], f"{at}{part}.sum")
            made = add("Reshape", [made, "split"], f"{at}{part}.split")
            parts[part] = add("Transpose", [made], f"{at}{part}", perm=order)
        score = add("MatMul", [parts["q"], parts["k"]], f"{at}scores")
        score = add("Mul", [score, "scale"], f"{at}scaled")
        score = add("Softmax", [score], f"{at}softmax", axis=-1)
        mixed = add("MatMul", [score, parts["v"]], f"{at}mixed")
        mixed = add("Transpose", [mixed], f"{at}turned", perm=[0, 2, 1, 3])
        mixed = add("Reshape", [mixed, "join"], f"{at}joined")
        x = _sum_and_norm(add, weight, f"{at}attention", mixed, x, HIDDEN)
        wide = add("MatMul", [x, weight(f"{at}wide.w", HIDDEN, WIDE)], f"{at}wide")
        wide = add("Relu", [wide], f"{at}relu")
        x = _sum_and_norm(add, weight, f"{at}narrow", wide, x, WIDE)
    nodes[-1].output[0] = "hidden"
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", "length"])],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["N", "length", HIDDEN])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def _sum_and_norm(add: Any, weight: Any, at: str, value: str, x: str, width: int) -> str:
    made = add("MatMul", [value, weight(f"{at}.w", width, HIDDEN)], f"{at}.product")
    made = add("Add", [made, weight(f"{at}.b", HIDDEN)], f"{at}.biased")
    made = add("Add", [made, x], f"{at}.sum")
    scale = weight(f"{at}.scale", HIDDEN, around=1.0)
    normed: str = add("LayerNormalization", [made, scale, weight(f"{at}.shift", HIDDEN)], at)
    return normed


def row(case: Case, name: str, folder: Path) -> str:
    """Return the table's line of a recipe on a model."""
    out = folder / f"{case.path.stem}-{name}.onnx"
    np.savez(folder / "calibration.npz", **case.calibration)  # type: ignore[arg-type]
    np.savez(folder / "test.npz", **case.test)  # type: ignore[arg-type]
    arguments = [*RECIPES[name], str(case.path), "--out", str(out), "--json"]
    if name == "optimized":
        arguments += ["--inputs", str(folder / "calibration.npz"), "--budget", "1"]
    else:
        arguments += ["--inputs", str(folder / "test.npz"), "--search-seconds", "0"]
        if name == "static":
            arguments += ["--calibration", str(folder / "calibration.npz"), "--method", "minmax"]
        if case.labels is not None:
            np.save(folder / "labels.npy", case.labels)
            arguments += ["--labels", str(folder / "labels.npy")]
    done = subprocess.run(
        [sys.executable, "-m", "cohort", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not out.exists():
        said = json.loads(done.stdout)
        why = said.get("reason") or said.get("error") or ""
        return f"| {case.title} | {name} | not written: {_cell(why)} | | | |"
    before, after = open_session(case.path), open_session(out)
    size = model_size(out) / model_size(case.path) - 1
    speeds = [_speed(before, after, case.make(rows)) for rows in case.rows]
    cells = (case.title, name, f"{size:+.0%}", *speeds, _outputs(case, before, after))
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:160]


def _speed(before: Session, after: Session, inputs: Arrays) -> str:
    found = compare_in_turn(
        lambda: before.run(inputs), lambda: after.run(inputs), budget=SECONDS
    ).ratio
    return f"**{1 / found.median:.2g}** ({1 / found.high:.2g} to {1 / found.low:.2g})"


def _outputs(case: Case, before: Session, after: Session) -> str:
    first, second = before.run(case.test), after.run(case.test)
    if case.labels is None:
        return f"cosine {_cosine(first[-1], second[-1]):.4f}"
    right = [np.mean(one[-1].argmax(1) == case.labels) for one in (first, second)]
    return f"accuracy {right[0]:.4f} → {right[1]:.4f}"


def _cosine(one: Array, other: Array) -> float:
    first, second = (array.astype(np.float64).reshape(-1) for array in (one, other))
    return float(first @ second / np.sqrt((first @ first) * (second @ second)))


def main() -> None:
    """Make and measure all, and write the table."""
    lines = [
        "| model | recipe | size | times as fast, 1 row | 64 rows (encoder: 8) | outputs |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases(folder):
            if not case.title.startswith(tuple(sys.argv[1:]) or ""):
                continue
            for recipe in RECIPES:
                lines.append(row(case, recipe, folder))
                print(lines[-1], file=sys.stderr, flush=True)
    if sys.argv[1:]:
        return
    lines += ["", f"Range: bounds of the median over rounds, at 99 %; onnxruntime {ORT_VERSION}."]
    write_table("recipes", "\n".join(lines))


if __name__ == "__main__":
    main()
