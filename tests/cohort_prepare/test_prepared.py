"""One command leads from a model in its framework to answers over HTTP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cohort_prepare.served import manifest_of, prepare, served_accuracy

TRAINING = """
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

rows, labels = load_digits(return_X_y=True)
train, test, known, wanted = train_test_split(
    rows.astype(np.float32), labels, random_state=7, stratify=labels
)

def model():
    layers = MLPClassifier((64,), max_iter=60, random_state=0)
    return make_pipeline(StandardScaler(), layers).fit(train, known)

if __name__ == "__main__":
    np.savez("train.npz", input=train[:300])
    np.savez("test.npz", input=test)
    np.save("labels.npy", wanted)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "training.py").write_text(TRAINING)
    return tmp_path


@pytest.mark.skipif(os.environ.get("CONVERTERS") != "all", reason="takes minutes: make converters")
def test_an_mlp_is_served_in_int8_with_the_accuracy_of_its_manifest(folder: Path) -> None:
    """It is converted, verified, optimized, quantized and published; a rerun has its digest."""
    report = prepare(folder, "sklearn")
    steps = [one["step"] for one in report["steps"]]
    assert steps == ["convert", "verify", "optimize", "quantize", "publish"]
    manifest = manifest_of(folder)
    assert [one["step"] for one in manifest["steps"]] == ["convert", "optimize", "quantize"]
    assert served_accuracy(folder) == manifest["accuracy"]["after"] > 0.9
    assert manifest["files"]["model.onnx"] == report["sha256"]
