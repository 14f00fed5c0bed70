"""`cohort verify`, as people and machines see it."""

from __future__ import annotations

import json
import runpy
import warnings
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cohort.cli import cli
from tests import onnx_models
from tests.cohort_prepare.commands import run_in, start_in
from tests.cohort_prepare.verifying.broken_models import BROKEN, SOURCES

TRAINING = """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

def model():
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(*load_iris(return_X_y=True))

def export(path, model):
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType
    made = to_onnx(model, initial_types=[("input", FloatTensorType([None, 4]))],
                   options={"zipmap": False})
    open(path, "wb").write(made.SerializeToString())

if __name__ == "__main__":
    export("model.onnx", model())
    export("unscaled.onnx", model()[-1])
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline of scikit-learn, its conversion, and one without its scaler."""
    from sklearn.datasets import load_iris

    folder = tmp_path_factory.mktemp("trained")
    (folder / "training.py").write_text(TRAINING)
    with chdir(folder), warnings.catch_warnings(action="ignore"):
        runpy.run_path("training.py", run_name="__main__")
    features, labels = load_iris(return_X_y=True)
    np.savez(folder / "test.npz", input=features.astype(np.float32))
    np.save(folder / "test.npy", labels)
    return folder


def test_conversion_agrees_and_is_drawn(trained: Path) -> None:
    """The exit status is 0; the report has both accuracies with an interval, and a picture."""
    ended = run_in(
        trained,
        *("verify", "training:model", "model.onnx", "--inputs", "test.npz", "--labels", "test.npy"),
        *("--plot", "plot.png", "--json"),
    )
    assert ended.exit_code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["good"], found["rows_off"], found["problems"]) == (True, 0, [])
    accuracy = found["accuracy"]
    assert accuracy["rows"] == 150
    assert accuracy["source"] == accuracy["model"] > 0.9
    assert accuracy["model_interval"][0] < accuracy["model"] < accuracy["model_interval"][1]
    assert (trained / "plot.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(trained.glob("*.worst.npz"))


def test_difference_is_reproduced_by_the_command_printed(trained: Path) -> None:
    """The exit status is 1, with advice and a file whose one row shows the difference again."""
    ended = run_in(trained, "verify", "training:model", "unscaled.onnx")
    assert ended.exit_code == 1, ended.stderr
    assert "preprocessing" in ended.stdout
    command = "cohort verify training:model unscaled.onnx --inputs unscaled.worst.npz"
    assert command in ended.stdout
    again = run_in(trained, "verify", *command.split()[2:], "--json")
    assert again.exit_code == 1
    found = json.loads(again.stdout)
    assert (found["rows"], found["rows_off"]) == (1, 1)
    assert found["reproduce"] == command


def test_accuracy_that_is_lost_is_told(trained: Path) -> None:
    """With labels, the report counts the rows that only one of the two has right."""
    ended = run_in(
        trained,
        *(
            "verify",
            "training:model",
            "unscaled.onnx",
            "--inputs",
            "test.npz",
            "--labels",
            "test.npy",
        ),
        *("--worst", "mine.npz", "--json"),
    )
    assert ended.exit_code == 1
    found = json.loads(ended.stdout)
    assert found["accuracy"]["only_source_right"] > 20
    assert any("less accurate" in one for one in found["problems"])
    assert (trained / "mine.npz").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("source.onnx", "nowhere.onnx"), "nowhere.onnx"),
        (("nowhere.onnx", "source.onnx"), "nowhere.onnx"),
        (("source.onnx", "junk.onnx"), "junk.onnx is not an ONNX model"),
        (("source.onnx", "source.onnx", "--inputs", "cut.npz"), "is not an .npz file"),
        (
            ("source.onnx", "source.onnx", "--inputs", "named.npz"),
            "has 'z', but the model has no such input",
        ),
        (("source.onnx", "source.onnx", "--labels", "cut.npz"), "--inputs"),
        (("source.onnx", "pair.onnx"), "has 1 inputs, the model 2"),
    ],
)
def test_wrong_use_is_told(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit status is 2, with a sentence, and no file is written."""
    monkeypatch.chdir(tmp_path)
    onnx_models.save(SOURCES["scores"], tmp_path / "source.onnx")
    onnx_models.save(SOURCES["pair"], tmp_path / "pair.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"\x08\x0a" + b"\xff" * 40)
    np.savez(tmp_path / "named.npz", z=np.zeros((2, 4), np.float32))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "named.npz").read_bytes()[:100])
    before = sorted(tmp_path.iterdir())
    ended = CliRunner().invoke(cli, ["verify", *arguments, "--json"])
    assert ended.exit_code == 2, ended.output
    assert said in json.loads(ended.stdout)["error"]
    assert sorted(tmp_path.iterdir()) == before


def test_tolerance_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that differs too much by default passes with a larger tolerance, which is printed."""
    onnx_models.save(SOURCES["probabilities"], tmp_path / "a.onnx")
    onnx_models.save(BROKEN["weights of another epoch"][1], tmp_path / "b.onnx")
    monkeypatch.chdir(tmp_path)
    assert start_in(tmp_path, "verify", "a.onnx", "b.onnx").returncode == 1
    ended = CliRunner().invoke(cli, ["verify", "a.onnx", "b.onnx", "--tolerance", "2"])
    assert ended.exit_code == 0, ended.output
    assert "FP32: 2 of the row's largest value" in ended.output
