"""Compare ONNX Runtime with a model's original framework, one thread each, as ratios.

Run where the frameworks are, and write the table into the page:

    OMP_NUM_THREADS=1 uv run --no-project --with 'torch==2.13.*' --with scikit-learn \
        --with 'skl2onnx==1.20.*' --with 'onnxmltools==1.16.*' --with 'xgboost-cpu==3.2.*' \
        --with 'lightgbm==4.7.*' --with 'onnx==1.21.*' --with 'protobuf<7' \
        --with 'onnxruntime==1.31.1' python -m benchmarks.prepare.native

A round takes runs of both in turn, so that a busy moment affects both. A ratio is of the medians of
a round, and its range is over the rounds.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median
from typing import Any

import lightgbm
import numpy as np
import onnxruntime as ort
import torch
import xgboost
from onnxmltools.convert import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from benchmarks.prepare.page import write_table
from cohort_prepare.evaluating.timing import time_in_turn

ROUNDS = 7
SECONDS = 0.6
"""Length of a round, for both together."""

Run = Callable[[Any], object]


@dataclass(frozen=True)
class Comparison:
    """A model in its framework and as ONNX, and inputs of some numbers of rows."""

    model: str
    framework: str
    native: Run
    onnx: bytes
    rows: Sequence[int]
    make: Callable[[int], Any]


def comparisons() -> Iterator[Comparison]:
    """Models of each framework, trained on or shaped for the digits of scikit-learn."""

    data, labels = load_digits(return_X_y=True)
    data = data.astype(np.float32)

    def digits(rows: int) -> Any:
        return data[np.arange(rows) % len(data)]

    yield from _scikit_learn(data, labels, digits)
    yield from _boosted(data, labels, digits)
    yield from _torch()


def _scikit_learn(data: Any, labels: Any, digits: Callable[[int], Any]) -> Iterator[Comparison]:

    models = {
        "scaler and logistic regression": make_pipeline(
            StandardScaler(), LogisticRegression(max_iter=200)
        ),
        "MLP 64-128-10": MLPClassifier((128,), max_iter=60, random_state=0),
        "random forest, 100 trees": RandomForestClassifier(100, random_state=0, n_jobs=1),
    }
    for name, model in models.items():
        model.fit(data, labels)
        made = to_onnx(model, data[:1], options={"zipmap": False}, target_opset=17)
        written = made.SerializeToString()
        yield Comparison(name, "scikit-learn", model.predict_proba, written, (1, 64, 1024), digits)


def _boosted(data: Any, labels: Any, digits: Callable[[int], Any]) -> Iterator[Comparison]:

    types = [("input", FloatTensorType([None, data.shape[1]]))]
    trees = lightgbm.LGBMClassifier(n_estimators=100, n_jobs=1, verbose=-1, random_state=0)
    trees.fit(data, labels)
    made = convert_lightgbm(trees, initial_types=types, zipmap=False, target_opset=15)

    def lightgbm_run(rows: Any) -> object:
        return trees.booster_.predict(rows, num_threads=1)

    name = "100 rounds of trees"
    rows = (1, 64, 1024)
    yield Comparison(name, "LightGBM", lightgbm_run, made.SerializeToString(), rows, digits)
    boosted = xgboost.XGBClassifier(n_estimators=100, n_jobs=1, random_state=0)
    boosted.fit(data, labels)
    made = convert_xgboost(boosted, initial_types=types, target_opset=15)
    yield Comparison(name, "XGBoost", boosted.predict_proba, made.SerializeToString(), rows, digits)


def _torch() -> Iterator[Comparison]:

    torch.set_num_threads(1)
    torch.manual_seed(0)
    cnn = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    ).eval()  # fmt: skip

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(384, 3 * 384)
            self.out, self.norm1, self.norm2 = (
                nn.Linear(384, 384),
                nn.LayerNorm(384),
                nn.LayerNorm(384),
            )
            self.wide, self.narrow = nn.Linear(384, 1536), nn.Linear(1536, 384)

        def forward(self, x: Any) -> Any:
            parts = self.mix(x).reshape(x.shape[0], x.shape[1], 3, 12, 32).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
            x = self.norm1(x + self.out(mixed.transpose(1, 2).reshape(x.shape)))
            return self.norm2(x + self.narrow(nn.functional.gelu(self.wide(x))))

    encoder = nn.Sequential(nn.Embedding(30522, 384), *(Layer() for _ in range(6))).eval()
    random = np.random.default_rng(0)

    def images(rows: int) -> Any:
        return random.random((rows, 1, 8, 8), np.float32)

    def words(rows: int) -> Any:
        return random.integers(0, 30522, (rows, 128))

    for name, module, make, rows in (
        ("digits CNN, 38k weights", cnn, images, (1, 64, 1024)),
        ("encoder, 22M weights, 128 tokens", encoder, words, (1, 8)),
    ):
        file = io.BytesIO()
        example = torch.from_numpy(make(2))
        axes = {"input": {0: "N"}, "output": {0: "N"}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module, (example,), file, input_names=["input"], output_names=["output"],
                dynamic_axes=axes, opset_version=17, dynamo=False,
            )  # fmt: skip
        yield Comparison(name, "PyTorch", _torch_run(module), file.getvalue(), rows, make)


def _torch_run(module: Any) -> Run:

    def run(rows: Any) -> object:
        with torch.inference_mode():
            return module(torch.from_numpy(rows)).numpy()

    return run


def ratios(comparison: Comparison, rows: int) -> list[float]:
    """Return how many times as fast ONNX Runtime is, for each round."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(comparison.onnx, options, providers=["CPUExecutionProvider"])
    inputs = comparison.make(rows)
    name = session.get_inputs()[0].name
    outputs = [session.get_outputs()[-1].name]
    runs: dict[str, Callable[[], object]] = {
        "native": lambda: comparison.native(inputs),
        "onnx": lambda: session.run(outputs, {name: inputs}),
    }
    found = []
    for _ in range(ROUNDS):
        times = time_in_turn(runs, budget=SECONDS)
        found.append(times["native"].median / times["onnx"].median)
    return found


def main() -> None:
    """Measure all, and write the table."""
    lines = [
        "| framework | model | rows | ONNX Runtime is … times as fast | range |",
        "|---|---|---|---|---|",
    ]
    for one in comparisons():
        for rows in one.rows:
            found = ratios(one, rows)
            line = (
                f"| {one.framework} | {one.model} | {rows} | **{median(found):.2g}** | "
                f"{min(found):.2g} to {max(found):.2g} |"
            )
            print(line, file=sys.stderr, flush=True)
            lines.append(line)
    packages = ("onnxruntime", "torch", "scikit-learn", "lightgbm", "xgboost-cpu")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    lines += ["", f"Range over {ROUNDS} rounds; {versions}."]
    write_table("native", "\n".join(lines))


if __name__ == "__main__":
    main()
