"""Train the bundled models: iris version 1, digits versions 1 and 2.

Run it in a separate environment (README.md in this folder has the pinned versions)::

    python models/train.py                  # writes into this folder
    python models/train.py --into build     # writes build/iris/1/model.onnx and so on, to compare

Every random choice is seeded and everything runs on one thread, so a second run with the same
libraries makes the same files. Nothing is written before ONNX Runtime has run the model on the
held-out split and agreed with the original.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from drawn import drawn_digits
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_digits, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from torch import nn

TEST_SIZE = 0.25
SEED = 7
TOLERANCE = 1e-5
MIN_DIGITS_ACCURACY = 0.98
MAX_LOST_TO_INT8 = 0.01

DRAWN = 440
"""Digits drawn by a program that are trained on, in addition to the data set's rows."""

TURNED, SHEARED, SCALED, MOVED = 0.2, 0.2, 0.12, 0.08
"""Maximum distortions of pictures: radians, and shares of the picture."""

TRAINING = f"the rows that were not held out and {DRAWN} drawn by drawn.py, distorted in each epoch"

OPSET = 18
IR_VERSION = 10

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Answers = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Split:
    """A data set cut once into rows to learn from and rows that only measure."""

    dataset: str
    preprocessing: str
    classes: tuple[str, ...]
    train_features: Floats
    test_features: Floats
    train_labels: Labels
    test_labels: Labels

    def accuracy(self, labels: npt.NDArray[Any]) -> float:
        """Compare `labels` with the held-out ones; the share that agree."""
        return int((labels == self.test_labels).sum()) / len(self.test_labels)

    def metadata(self, accuracy: float, *libraries: str) -> dict[str, str]:
        """Say what anyone needs to recreate the held-out rows and measure `accuracy` again."""
        return {
            "classes": json.dumps(self.classes),
            "dataset": self.dataset,
            "preprocessing": self.preprocessing,
            "split": (
                f"train_test_split(features, labels, test_size={TEST_SIZE}, "
                f"random_state={SEED}, stratify=labels)"
            ),
            "test_size": str(TEST_SIZE),
            "split_seed": str(SEED),
            "test_rows": str(len(self.test_labels)),
            "test_accuracy": repr(accuracy),
            "libraries": json.dumps({library: version(library) for library in libraries}),
        }


def main() -> None:
    """Make all three models and write them once every check has passed."""
    parser = argparse.ArgumentParser(description="Train the bundled models.")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent, help="models folder")
    into: Path = parser.parse_args().into

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # The exporter's own deprecations, and its and the quantizer's hints about other recipes.
    warnings.simplefilter("ignore", FutureWarning)
    logging.disable(logging.WARNING)

    iris = iris_forest(iris_split())
    digits = digits_split()
    network = trained_network(digits)
    exported = digits_network(digits, network)
    quantized = digits_int8(digits, exported)

    for name, model in (
        ("iris/1", iris),
        ("digits/1", exported),
        ("digits/2", quantized),
    ):
        path = into / name / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.write_bytes(model.SerializeToString(deterministic=True))
        print(f"wrote {path} ({written:,} bytes)")


def iris_split() -> Split:
    """Fisher's irises as FP32 [N, 4], in centimetres."""
    data = load_iris()
    return split(
        data.data,
        data.target,
        dataset="sklearn.datasets.load_iris",
        preprocessing="none",
        classes=tuple(map(str, data.target_names)),
    )


def digits_split() -> Split:
    """Return the 8x8 handwritten digits as FP32 [N, 1, 8, 8], scaled to 0..1."""
    data = load_digits()
    return split(
        data.images[:, np.newaxis] / 16,
        data.target,
        dataset="sklearn.datasets.load_digits",
        preprocessing="images / 16, as [N, 1, 8, 8]",
        classes=tuple(map(str, data.target_names)),
    )


def split(
    features: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    *,
    dataset: str,
    preprocessing: str,
    classes: tuple[str, ...],
) -> Split:
    """Hold out a quarter of the rows, each class in proportion, as in `Split.metadata`."""
    parts = train_test_split(
        features.astype(np.float32),
        labels.astype(np.int64),
        test_size=TEST_SIZE,
        random_state=SEED,
        stratify=labels,
    )
    return Split(dataset, preprocessing, classes, *parts)


def iris_forest(iris: Split) -> onnx.ModelProto:
    """Train a small random forest and convert it; labels must agree exactly."""
    forest = RandomForestClassifier(n_estimators=30, max_depth=4, random_state=SEED, n_jobs=1)
    forest.fit(iris.train_features, iris.train_labels)
    converted = convert_sklearn(
        forest,
        name="iris",
        initial_types=[("features", FloatTensorType([None, 4]))],
        target_opset={"": OPSET, "ai.onnx.ml": 3},
        options={"zipmap": False},
    )
    model = signed(
        converted,
        doc="Which of three irises a flower is, by a random forest over its four measurements.",
    )

    answers = run(model, {"features": iris.test_features})
    check_close("iris/1", answers["probabilities"], forest.predict_proba(iris.test_features))
    if not np.array_equal(answers["label"], forest.predict(iris.test_features)):
        raise SystemExit("iris/1: labels differ from scikit-learn's")
    accuracy = iris.accuracy(answers["label"])
    print(f"iris/1: accuracy {accuracy:.4f} on {len(iris.test_labels)} held-out rows")

    metadata = iris.metadata(accuracy, "scikit-learn", "skl2onnx", "numpy", "onnx")
    metadata["feature_names"] = json.dumps(load_iris().feature_names)
    onnx.helper.set_model_props(model, metadata)
    return model


class DigitsNetwork(nn.Module):
    """Two convolutions and two dense layers: 38,282 weights, probabilities out."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.logits(image), dim=1)


def trained_network(digits: Split, *, epochs: int = 80, batch: int = 64) -> DigitsNetwork:
    """Train on the training rows and drawn digits, each distorted again in every epoch.

    Held-out rows are not used: the number of epochs and the distortions were chosen on splits of
    the training rows.
    """
    network = DigitsNetwork()
    drawn = drawn_digits(DRAWN, seed=SEED)
    rows = zip((digits.train_features, digits.train_labels), drawn, strict=True)
    images, labels = (torch.from_numpy(np.concatenate(both)) for both in rows)
    chance = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

    for epoch in range(1, epochs + 1):
        total = 0.0
        order = torch.randperm(len(images))
        for rows in (order[start : start + batch] for start in range(0, len(order), batch)):
            seen = distorted(images[rows], chance)
            loss = nn.functional.cross_entropy(network.logits(seen), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
            optimizer.step()
            total += loss.item() * len(rows)
        schedule.step()
        if epoch % 10 == 0:
            print(f"digits: epoch {epoch} of {epochs}, training loss {total / len(images):.4f}")
    return network.eval()


def distorted(images: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """Turn, shear, stretch and move each picture [N, 1, 8, 8] a little, as other hands would."""

    def up_to(most: float) -> torch.Tensor:
        return (torch.rand(len(images), generator=chance) * 2 - 1) * most

    turn, shear, wider, higher = up_to(TURNED), up_to(SHEARED), up_to(SCALED), up_to(SCALED)
    across = torch.stack([(1 + wider) * turn.cos(), shear - turn.sin(), up_to(MOVED)], dim=1)
    down = torch.stack([turn.sin(), (1 + higher) * turn.cos(), up_to(MOVED)], dim=1)
    size = list(images.shape)
    grid = nn.functional.affine_grid(torch.stack([across, down], dim=1), size, align_corners=False)
    return nn.functional.grid_sample(images, grid, align_corners=False)


def digits_network(digits: Split, network: DigitsNetwork) -> onnx.ModelProto:
    """Export the trained network; its probabilities must agree with PyTorch's."""
    program = torch.onnx.export(
        network,
        (torch.from_numpy(digits.train_features[:2]),),
        input_names=["image"],
        output_names=["probabilities"],
        dynamic_shapes={"image": {0: torch.export.Dim("N")}},
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    assert program is not None
    model = signed(
        program.model_proto,
        doc="Which handwritten digit an 8x8 grey image shows, by a small convolutional network.",
    )

    answers = run(model, {"image": digits.test_features})
    with torch.inference_mode():
        expected = network(torch.from_numpy(digits.test_features)).numpy()
    check_close("digits/1", answers["probabilities"], expected)
    accuracy = digits.accuracy(answers["probabilities"].argmax(axis=1))
    print(f"digits/1: accuracy {accuracy:.4f} on {len(digits.test_labels)} held-out rows")
    if accuracy < MIN_DIGITS_ACCURACY:
        raise SystemExit(f"digits/1: {accuracy:.4f} is less than {MIN_DIGITS_ACCURACY}")

    metadata = digits.metadata(accuracy, "scikit-learn", "torch", "onnxscript", "numpy", "onnx")
    metadata["training"] = TRAINING
    onnx.helper.set_model_props(model, metadata)
    return model


class TrainingRows(CalibrationDataReader):  # type: ignore[misc]  # untyped in onnxruntime
    """Feeds the calibration, which sees no held-out row."""

    def __init__(self, digits: Split, batch: int = 64) -> None:
        images = digits.train_features
        self._batches: Iterator[Floats] = (
            images[start : start + batch] for start in range(0, len(images), batch)
        )

    def get_next(self) -> dict[str, Floats] | None:
        images = next(self._batches, None)
        return None if images is None else {"image": images}


def digits_int8(digits: Split, exported: onnx.ModelProto) -> onnx.ModelProto:
    """Quantize the network to INT8 with static scales; it may lose a point of accuracy at most.

    Static scales keep rows apart: with dynamic ones, the largest value of one caller's row sets
    the scale for everybody's.
    """
    with tempfile.TemporaryDirectory() as folder:
        original, prepared, result = (Path(folder, f"{step}.onnx") for step in range(3))
        onnx.save(exported, original)
        quant_pre_process(original, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            result,
            TrainingRows(digits),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Relu", "MaxPool", "Reshape", "Gemm"],
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            # Seven-bit weights: AVX2's VPMADDUBSW saturates on eight, so that the same file
            # would answer differently from one processor to the next.
            reduce_range=True,
        )
        model = signed(
            onnx.load(result),
            doc="Which handwritten digit an 8x8 grey image shows: version 1 in INT8.",
        )

    images = {"image": digits.test_features}
    probabilities = run(model, images)["probabilities"]
    before = run(exported, images)["probabilities"]
    accuracy = digits.accuracy(probabilities.argmax(axis=1))
    lost = digits.accuracy(before.argmax(axis=1)) - accuracy
    agree = float((probabilities.argmax(axis=1) == before.argmax(axis=1)).mean())
    print(
        f"digits/2: accuracy {accuracy:.4f} on {len(digits.test_labels)} held-out rows, "
        f"the same digit as version 1 on {agree:.2%}"
    )
    if abs(lost) > MAX_LOST_TO_INT8:
        raise SystemExit(f"digits/2: accuracy moved by {lost:.4f}")

    metadata = digits.metadata(
        accuracy, "scikit-learn", "torch", "onnxscript", "numpy", "onnx", "onnxruntime"
    )
    metadata["training"] = TRAINING
    metadata["quantization"] = "static QDQ of version 1: UINT8 activations, INT8 weights by channel"
    metadata["calibration"] = f"MinMax over the {len(digits.train_labels)} training rows"
    onnx.helper.set_model_props(model, metadata)
    return model


def run(model: onnx.ModelProto, inputs: Mapping[str, Floats]) -> Answers:
    """Run `model` in ONNX Runtime on one CPU thread; every output by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def check_close(name: str, got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """Stop where ONNX Runtime's answers are not the source model's."""
    furthest = float(np.abs(got - expected).max())
    print(f"{name}: ONNX Runtime is within {furthest:.1e} of the source model")
    if not furthest <= TOLERANCE:
        raise SystemExit(f"{name}: {furthest:.1e} is more than {TOLERANCE:.0e}")


def signed(model: onnx.ModelProto, *, doc: str) -> onnx.ModelProto:
    """Copy `model` with our name on it, axis 0 called N, and no trace of where it was made."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.producer_name = "cohort"
    result.producer_version = "1"
    result.domain = ""
    result.doc_string = doc
    result.ir_version = IR_VERSION
    del result.metadata_props[:]

    graph = result.graph
    used = {node.domain for node in graph.node} | {""}
    versions = {opset.domain: opset.version for opset in model.opset_import}
    del result.opset_import[:]
    result.opset_import.extend(
        onnx.helper.make_opsetid(domain, versions[domain]) for domain in sorted(used)
    )

    graph.doc_string = ""
    del graph.metadata_props[:]
    del graph.value_info[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        # PyTorch's exporter records the stack, file names included, on every node.
        part.doc_string = ""
        del part.metadata_props[:]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.checker.check_model(result, full_check=True)
    return result


if __name__ == "__main__":
    main()
