"""Digits on a canvas: a detector finds them, each is cut out, and a classifier reads it.

python examples/detector/example.py make build/detector   trains the detector, writes models
cohort serve --models build/detector                      in another window
python examples/detector/example.py compare               what is found, on held-out digits
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper, save
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

ROOT = Path(__file__).parents[2]
URL = os.environ.get("SERVER", "http://localhost:8000")
SIZE = 64  # pixels along each side of a canvas
FOUND = 16  # boxes that the detector gives for each picture, most of them of no digit
PIPELINE = f"""\
inputs:
  image: {{image: {{size: [{SIZE}, {SIZE}], channels: grey}}}}
steps:
  find: {{model: finder, inputs: {{image: image}}}}
  crop: {{model: crop, inputs: {{image: image, boxes: find.boxes}}}}
  read:
    model: digits
    inputs: {{image: crop.crops}}
    each: [crop.crops, find.scores]
    when: find.scores >= 0.5
outputs:
  boxes:
    from: find.boxes
    detections: {{scores: scores, classes: digits, threshold: 0.5}}
  scores: {{from: find.scores}}
  digits: {{from: read.probabilities}}
"""

Array = np.ndarray[Any, Any]
Place = tuple[int, int, int]  # x, y and the number of the digit
Tensor = tuple[str, list[str | int]]

pixels, labels = load_digits(return_X_y=True)
images = (pixels / 16).astype(np.float32).reshape(-1, 8, 8)
train_x, test_x, train_y, test_y = train_test_split(
    images, labels, test_size=0.25, random_state=7, stratify=labels
)  # the split of models/train.py


def draw(random: np.random.Generator, digits: Array) -> tuple[Array, list[Place]]:
    """Return a canvas with up to 6 digits, lines and noise, and the places of the digits."""
    canvas = random.uniform(0, 0.1, (SIZE, SIZE)).astype(np.float32)
    for _ in range(random.integers(3)):  # lines, to be ignored
        row, column = random.integers(SIZE, size=2)
        canvas[row, column : column + 20] = random.uniform(0.3, 1)
        canvas[column : column + 20, row] = random.uniform(0.3, 1)
    places: list[Place] = []
    for _ in range(random.integers(7)):
        y, x = random.integers(SIZE - 8, size=2)
        if any(abs(y - b) < 11 and abs(x - a) < 11 for a, b, _ in places):
            continue
        which = random.integers(len(digits))
        canvas[y - 1 if y else 0 : y + 9, x - 1 if x else 0 : x + 9] *= 0.1
        canvas[y : y + 8, x : x + 8] = np.maximum(canvas[y : y + 8, x : x + 8], digits[which])
        places.append((int(x), int(y), int(which)))
    return canvas, places


def windows() -> tuple[Array, Array]:
    """Windows of 8 by 8 pixels, and whether a digit is in the very middle of each."""
    random = np.random.default_rng(1)
    found, is_digit = [], []
    for _ in range(600):
        canvas, places = draw(random, train_x)
        near = [(x + dx, y + dy) for x, y, _ in places for dx, dy in random.integers(-5, 6, (8, 2))]
        far = [(x, y) for x, y in random.integers(SIZE - 7, size=(12, 2))]
        middle = {(x, y) for x, y, _ in places}
        for x, y in [*middle, *near, *far]:
            if 0 <= x <= SIZE - 8 and 0 <= y <= SIZE - 8:
                found.append(canvas[y : y + 8, x : x + 8].ravel())
                is_digit.append((x, y) in middle)
    return np.array(found), np.array(is_digit)


def model(
    name: str,
    nodes: list[NodeProto],
    inputs: list[Tensor],
    outputs: list[Tensor],
    weights: dict[str, Any],
) -> ModelProto:
    """Return a model of these nodes."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in outputs],
        [numpy_helper.from_array(np.asarray(value), n) for n, value in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    checker.check_model(made)
    return made


def finder() -> ModelProto:
    """A network that looks at every window of a picture: the best ones, as boxes and scores."""
    network = MLPClassifier(
        (48,), alpha=1e-3, max_iter=40, early_stopping=True, random_state=0
    ).fit(*windows())
    hidden, last = network.coefs_
    side = SIZE - 7  # windows in a row
    nodes = [
        helper.make_node("Conv", ["image", "hidden", "hidden_bias"], ["seen"]),
        helper.make_node("Relu", ["seen"], ["active"]),
        helper.make_node("Conv", ["active", "last", "last_bias"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["map"]),
        # Keep a window only if no better one is less than 5 pixels away.
        helper.make_node(
            "MaxPool", ["map"], ["best"], kernel_shape=[9, 9], pads=[4, 4, 4, 4], strides=[1, 1]
        ),
        helper.make_node("Equal", ["map", "best"], ["is_best"]),
        helper.make_node("Where", ["is_best", "map", "zero"], ["peaks"]),
        helper.make_node("Reshape", ["peaks", "flat"], ["all"]),
        helper.make_node("TopK", ["all", "count"], ["scores", "places"], axis=1),
        helper.make_node("Div", ["places", "side"], ["y"]),
        helper.make_node("Mod", ["places", "side"], ["x"]),
        helper.make_node("Add", ["x", "eight"], ["right"]),
        helper.make_node("Add", ["y", "eight"], ["bottom"]),
        *[
            helper.make_node("Unsqueeze", [name, "two"], [f"{name}_column"])
            for name in ("x", "y", "right", "bottom")
        ],
        helper.make_node(
            "Concat", ["x_column", "y_column", "right_column", "bottom_column"], ["corners"], axis=2
        ),
        helper.make_node("Cast", ["corners"], ["boxes"], to=TensorProto.FLOAT),
    ]
    weights = {
        "hidden": hidden.T.reshape(-1, 1, 8, 8).astype(np.float32),
        "hidden_bias": network.intercepts_[0].astype(np.float32),
        "last": last.T.reshape(1, -1, 1, 1).astype(np.float32),
        "last_bias": network.intercepts_[1].astype(np.float32),
        "zero": np.float32(0),
        "flat": np.array([0, side * side]),
        "count": np.array([FOUND]),
        "side": np.int64(side),
        "eight": np.int64(8),
        "two": np.array([2]),
    }
    outputs: list[Tensor] = [("boxes", ["N", FOUND, 4]), ("scores", ["N", FOUND])]
    return model("finder", nodes, [("image", ["N", 1, SIZE, SIZE])], outputs, weights)


def crop() -> ModelProto:
    """Cut all boxes out of all pictures, as 8 by 8 pixels, by RoiAlign."""
    nodes = [
        helper.make_node("Shape", ["boxes"], ["pictures"], start=0, end=1),
        helper.make_node("Shape", ["boxes"], ["pictures_and_boxes"], start=0, end=2),
        helper.make_node("Squeeze", ["pictures"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["numbers"]),
        helper.make_node("Unsqueeze", ["numbers", "second"], ["column"]),
        helper.make_node("Expand", ["column", "pictures_and_boxes"], ["of_each"]),
        helper.make_node("Reshape", ["of_each", "flat"], ["of"]),
        helper.make_node("Reshape", ["boxes", "flat_boxes"], ["rois"]),
        helper.make_node(
            "RoiAlign", ["image", "rois", "of"], ["cut"],
            output_height=8, output_width=8, sampling_ratio=1,
        ),
        helper.make_node("Concat", ["pictures_and_boxes", "crop"], ["shape"], axis=0),
        helper.make_node("Reshape", ["cut", "shape"], ["crops"]),
    ]  # fmt: skip
    weights = {
        "zero": np.int64(0),
        "one": np.int64(1),
        "second": np.array([1]),
        "flat": np.array([-1]),
        "flat_boxes": np.array([-1, 4]),
        "crop": np.array([1, 8, 8]),
    }
    inputs: list[Tensor] = [("image", ["N", 1, "H", "W"]), ("boxes", ["N", "K", 4])]
    return model("crop", nodes, inputs, [("crops", ["N", "K", 1, 8, 8])], weights)


def make(folder: Path) -> None:
    """Write the three models and the pipeline."""
    for name in ("finder", "crop", "digits", "reader"):
        (folder / name / "1").mkdir(parents=True, exist_ok=True)
    save(finder(), folder / "finder/1/model.onnx")
    save(crop(), folder / "crop/1/model.onnx")
    shutil.copy(ROOT / "models/digits/1/model.onnx", folder / "digits/1/model.onnx")
    (folder / "reader/1/pipeline.yaml").write_text(PIPELINE, encoding="utf-8")
    random = np.random.default_rng(3)
    places: list[Place] = []
    while len(places) < 4:
        canvas, places = draw(random, test_x)
    (folder / "canvas.png").write_bytes(png(canvas))


def png(canvas: Array) -> bytes:
    """Return a canvas as a file."""
    file = io.BytesIO()
    Image.fromarray((canvas * 255).round().astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def compare(pictures: int = 300) -> None:
    """Send canvases with held-out digits, and count what is found and read."""
    random = np.random.default_rng(2)
    digits = found = right = wrong = 0
    before = counted()
    for _ in range(pictures):
        canvas, places = draw(random, test_x)
        request = urllib.request.Request(
            f"{URL}/models/reader/predict", png(canvas), {"content-type": "image/png"}
        )
        with urllib.request.urlopen(request) as answer:
            (objects,) = json.load(answer)["detections"]
        digits += len(places)
        left = {(x, y): test_y[which] for x, y, which in places}
        for one in objects:
            near = [at for at in left if distance(at, one["box"]) <= 2]
            if near:
                found += 1
                right += one["label"] == str(left.pop(near[0]))
            else:
                wrong += 1
    read = counted() - before
    print(f"{digits} digits on {pictures} pictures: {found / digits:.1%} found", end=", ")
    print(f"{right / found:.1%} of these read right, {wrong} found where none is")
    print(f"read: {read:.0f} of {FOUND * pictures} boxes")


def distance(at: tuple[int, int], box: dict[str, float]) -> float:
    """Return the distance of a box from a digit, in pixels."""
    return max(abs(at[0] - box["xmin"]), abs(at[1] - box["ymin"]))


def counted() -> float:
    """Return the rows that the step for each box has had."""
    with urllib.request.urlopen(f"{URL}/metrics") as answer:
        lines = [line.decode().rsplit(" ", 1) for line in answer]
    wanted = 'model_step_rows_total{model="reader",step="read"'
    return sum(float(value) for key, value in lines if key.startswith(wanted))


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"] and len(sys.argv) == 3:
        make(Path(sys.argv[2]))
    elif sys.argv[1:] == ["compare"]:
        compare()
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 3:
        compare(int(sys.argv[2]))
    else:
        sys.exit(__doc__)
