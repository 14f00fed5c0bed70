"""A cascade on the digits: a linear model answers what it is sure of, the network the rest.

Commands::

    python examples/cascade/example.py make build/cascade   trains the linear model, writes models
    cohort serve --models build/cascade                     in another window
    python examples/cascade/example.py compare              accuracy and cost, on held-out rows
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import urllib.request
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

ROOT = Path(__file__).parents[2]
URL = os.environ.get("SERVER", "http://localhost:8000")
PIPELINE = """\
steps:
  small: {model: digits-linear, inputs: {image: image}}
  large: {model: digits-network, inputs: {image: image}, when: max(small.probabilities) < 0.9}
outputs:
  probabilities: {from: [large.probabilities, small.probabilities]}
"""

pixels, labels = load_digits(return_X_y=True)
images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
train_x, test_x, train_y, test_y = train_test_split(
    images, labels, test_size=0.25, random_state=7, stratify=labels
)  # the split of models/train.py


def make(folder: Path) -> None:
    """Write both models and the pipeline."""
    linear = LogisticRegression(max_iter=2000).fit(train_x.reshape(-1, 64), train_y)
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights", "bias"], ["scores"], transB=1),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits-linear",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10])],
        [
            numpy_helper.from_array(linear.coef_.astype(np.float32), "weights"),
            numpy_helper.from_array(linear.intercept_.astype(np.float32), "bias"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    checker.check_model(model)
    for name in ("digits-linear", "digits-network"):
        (folder / name / "1").mkdir(parents=True, exist_ok=True)
    save(model, folder / "digits-linear/1/model.onnx")
    shutil.copy(ROOT / "models/digits/1/model.onnx", folder / "digits-network/1/model.onnx")
    (folder / "digits").mkdir(exist_ok=True)
    (folder / "digits/pipeline.yaml").write_text(PIPELINE, encoding="utf-8")


def compare() -> None:
    """Ask each model for the held-out rows, and read from the metrics what that cost."""
    print(f"{'model':16}{'accuracy':>10}{'µs a row in runs':>18}{'rows of the network':>21}")
    for name in ("digits-linear", "digits-network", "digits"):
        before = counted()
        right = 0
        for start in range(0, len(test_x), 16):
            body = {"inputs": {"image": test_x[start : start + 16].tolist()}}
            request = urllib.request.Request(
                f"{URL}/models/{name}/predict", json.dumps(body).encode()
            )
            with urllib.request.urlopen(request) as answer:
                found = json.load(answer)["outputs"]["probabilities"]
            right += int(np.sum(np.argmax(found, 1) == test_y[start : start + 16]))
        (seconds, rows), (seconds0, rows0) = counted(), before
        accuracy = right / len(test_x)
        micros = (seconds - seconds0) / len(test_x) * 1e6
        print(f"{name:16}{accuracy:>10.4f}{micros:>18.2f}{(rows - rows0) / len(test_x):>21.1%}")


def counted() -> tuple[float, float]:
    """Return the seconds of all runs so far, and the rows of the network's."""
    with urllib.request.urlopen(f"{URL}/metrics") as answer:
        lines = [line.decode().rsplit(" ", 1) for line in answer if not line.startswith(b"#")]
    seconds = sum(float(v) for k, v in lines if k.startswith("model_run_duration_seconds_sum"))
    network = 'model_batch_rows_sum{model="digits-network"'
    return seconds, sum(float(v) for k, v in lines if k.startswith(network))


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"] and len(sys.argv) == 3:
        make(Path(sys.argv[2]))
    elif sys.argv[1:] == ["compare"]:
        compare()
    else:
        sys.exit(__doc__)
