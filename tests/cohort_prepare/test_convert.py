"""`cohort convert`: a model of a framework becomes an ONNX model that gives the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cohort_prepare.commands import run_in, start_in

TRAINING = """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

def model():
    return LogisticRegression(max_iter=500).fit(*load_iris(return_X_y=True))

def broken():
    raise ValueError("no data today")
"""


@pytest.fixture
def training(tmp_path: Path) -> Path:
    (tmp_path / "training.py").write_text(TRAINING)
    return tmp_path


def test_model_of_a_module_is_converted_the_same_every_time(training: Path) -> None:
    """The framework is found by the model's class; two conversions give the same bytes."""
    found = []
    for name in ("one", "other"):
        ended = run_in(training, "convert", "training:model", "--out", f"{name}.onnx", "--json")
        assert ended.exit_code == 0, ended.stderr
        found.append(json.loads(ended.stdout))
    assert found[0]["sha256"] == found[1]["sha256"]
    assert found[0]["framework"] == "sklearn"
    assert [one["name"] for one in found[0]["inputs"]] == ["input"]
    assert found[0]["difference"]["max_absolute"] < 1e-5
    assert sorted(one.name for one in training.glob("*.onnx*")) == ["one.onnx", "other.onnx"]


def test_failed_conversion_leaves_nothing(training: Path) -> None:
    """An exception of the user's code is exit 1, and the version's folder is not made."""
    ended = start_in(
        training, "convert", "training:broken", "--out", "models/iris/1/model.onnx", "--json"
    )
    assert ended.returncode == 1
    assert "ValueError: no data today" in json.loads(ended.stdout)["error"]
    assert {one.name for one in training.iterdir()} - {"__pycache__"} == {"training.py"}


def test_source_that_is_not_there_is_told(training: Path) -> None:
    """Wrong use is exit 2, in words on stderr and in JSON on stdout."""
    ended = run_in(training, "convert", "nowhere.pkl", "--out", "model.onnx", "--json")
    assert ended.exit_code == 2
    assert "no file, no folder" in json.loads(ended.stdout)["error"]
    assert not (training / "model.onnx").exists()
