"""A CNN of PyTorch, trained here, served in INT8."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from tests.cohort_prepare.served import manifest_of, prepare, served_accuracy

pytestmark = pytest.mark.skipif(
    os.environ.get("CONVERTERS") != "all", reason="takes minutes: make converters"
)

DATA = """
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

rows, labels = load_digits(return_X_y=True)
images = (rows / 16).reshape(-1, 1, 8, 8).astype(np.float32)
train, test, known, wanted = train_test_split(images, labels, random_state=7, stratify=labels)
np.savez("train.npz", image=train[:300])
np.savez("all.npz", train=train, known=known)
np.savez("test.npz", image=test)
np.save("labels.npy", wanted)
"""

TRAINING = """
import numpy as np
import torch
from torch import nn


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
        )

    def forward(self, image):
        return self.layers(image).softmax(-1)


def model():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with np.load("all.npz") as file:
        images, labels = torch.from_numpy(file["train"]), torch.from_numpy(file["known"])
    digits = Digits()
    optimizer = torch.optim.Adam(digits.parameters(), 0.003)
    for _ in range(15):
        for rows in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.nll_loss(digits(images[rows]).log(), labels[rows]).backward()
            optimizer.step()
    return digits.eval(), {"image": images[:2].numpy()}
"""


def test_a_cnn_of_pytorch_is_served_in_int8_with_the_accuracy_of_its_manifest(
    tmp_path: Path,
) -> None:
    """It is trained on digits in uv's environment; a second run has the same digest."""
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "training.py").write_text(TRAINING)
    report = prepare(tmp_path, "pytorch", data="data.py")
    manifest = manifest_of(tmp_path)
    quantized = next(one for one in report["steps"] if one["step"] == "quantize")
    assert quantized["recommended"] == "static-minmax"
    stored = onnx.load(tmp_path / "models/digits/1/model.onnx").graph.initializer
    assert TensorProto.INT8 in {one.data_type for one in stored}
    assert served_accuracy(tmp_path) == manifest["accuracy"]["after"] > 0.9
    assert prepare(tmp_path, "pytorch", data="data.py")["sha256"] == report["sha256"]
