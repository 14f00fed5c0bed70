"""`cohort quantize`, run as a command on real models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from cohort.cli import cli
from cohort.session import open_session
from cohort_prepare.onnx_files import read_onnx
from cohort_prepare.steps import read_steps
from tests import onnx_models
from tests.bundled import MODELS, digits_test_split
from tests.cohort_prepare.commands import run_in, start_in

DIGITS = MODELS / "digits" / "1" / "model.onnx"


def quantize(*arguments: object, folder: Path) -> tuple[int, dict[str, Any], str]:
    """Run the command with --json: return its exit code, its report and its standard error."""
    ended = run_in(folder, "quantize", *arguments, "--json")
    return ended.exit_code, json.loads(ended.stdout), ended.stderr


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """The held-out digits and their labels, in a folder."""
    images, labels = digits_test_split()
    np.savez(tmp_path / "rows.npz", image=images)
    np.save(tmp_path / "labels.npy", labels)
    return tmp_path


def test_a_static_model_is_written_with_its_accuracy(rows: Path) -> None:
    """The digits CNN with min-max has a third of the size, is accurate, and records its steps."""
    code, found, _ = quantize(
        DIGITS, "--out", "q.onnx", "--recipe", "static", "--method", "minmax",
        "--calibration", "rows.npz", "--labels", "labels.npy", "--plot", "plot.png", folder=rows,
    )  # fmt: skip
    assert (code, found["good"], found["recommended"]) == (0, True, "static-minmax")
    (recipe,) = found["recipes"]
    assert recipe["size_ratio"] < 0.4
    assert found["bytes"] == (rows / "q.onnx").stat().st_size
    assert recipe["batching_off"] == ""
    assert set(recipe["latency_ms"]) == {"1", "8", "32"}
    images, labels = digits_test_split()
    (scores,) = open_session(rows / "q.onnx").run({"image": images})
    assert float(np.mean(scores.argmax(1) == labels)) == recipe["outputs"]["accuracy"] > 0.97
    (step,) = read_steps(read_onnx(rows / "q.onnx"))
    assert (step.step, step.options["method"]) == ("quantize", "minmax")
    assert step.difference is not None
    assert step.difference.max_absolute == recipe["outputs"]["max_absolute"] > 0
    assert (rows / "plot.png").read_bytes()[:4] == b"\x89PNG"
    assert {one.name for one in rows.iterdir()} == {
        *("q.onnx", "rows.npz", "labels.npy", "plot.png"),
    }


def test_a_recipe_that_costs_batching_says_so_before_it_is_published(rows: Path) -> None:
    """The note and the JSON name the node that scales all rows of a run together."""
    code, found, _ = quantize(
        DIGITS, "--out", "q.onnx", "--recipe", "dynamic", "--inputs", "rows.npz", folder=rows
    )
    assert code == 0
    (recipe,) = found["recipes"]
    assert (recipe["rows"], recipe["costs_batching"]) == ("refuted", True)
    assert found["original"]["rows"] == "proven"
    (note,) = [one for one in found["notes"] if "cannot be batched" in one]
    assert "DynamicQuantizeLinear" in note
    shown = run_in(
        rows, "quantize", DIGITS, "--out", "w.onnx", "--recipe", "dynamic", "--inputs", "rows.npz"
    )
    assert "dynamic cannot be batched, since rows may influence" in shown.stdout.lower()


def test_a_model_of_trees_has_nothing_to_quantize(tmp_path: Path) -> None:
    """It is a verdict, and the JSON lists the model's operators."""
    ended = start_in(
        tmp_path, "quantize", MODELS / "iris" / "1" / "model.onnx", "--out", "q.onnx", "--json"
    )
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["good"]) == (1, False)
    assert "nothing to quantize" in ended.stderr
    assert found["operators"]
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_lose_too_much_are_not_written(tmp_path: Path) -> None:
    """With nearly equal classes, INT8 decides differently on many rows."""
    model = onnx_models.mlp(features=64, hidden=64, classes=4, layers=1)
    random = np.random.default_rng(0)
    weights = np.ones((64, 4)) + 1e-3 * random.standard_normal((64, 4))
    for place, values in ((2, weights), (3, np.zeros(4))):
        name = model.graph.initializer[place].name
        tensor = onnx.numpy_helper.from_array(values.astype(np.float32), name)
        model.graph.initializer[place].CopyFrom(tensor)
    onnx_models.save(model, tmp_path / "model.onnx")
    x = random.standard_normal((200, 64)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x)
    labels = open_session(tmp_path / "model.onnx").run({"x": x})[0].argmax(1)
    np.save(tmp_path / "labels.npy", labels)
    code, found, said = quantize(
        "model.onnx", "--out", "q.onnx", "--recipe", "dynamic", "--inputs", "rows.npz",
        "--labels", "labels.npy", "--search-seconds", "0", folder=tmp_path,
    )  # fmt: skip
    assert (code, found["recommended"], found["out"], found["bytes"]) == (1, None, None, None)
    assert "Accuracy drops by" in said
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--recipe", "static"), "--calibration with at least"),
        (("--labels", "labels.npy"), "--labels needs --inputs"),
        (("--inputs", "nowhere.npz"), "nowhere.npz not found"),
        (("--recipe", "int4", "--method", "entropy"), "--method needs the static recipe"),
        (("--plot", "plot.gif"), "must be a .png or .svg file"),
    ],
)
def test_wrong_use_is_said(
    rows: Path, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the right option, and the exit code is 2."""
    monkeypatch.chdir(rows)
    ended = CliRunner().invoke(cli, ["quantize", str(DIGITS), "--out", "q.onnx", *arguments])
    assert ended.exit_code == 2
    assert said in ended.stderr


def test_the_model_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--out names the model itself."""
    shutil.copy(DIGITS, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(cli, ["quantize", "model.onnx", "--out", "./model.onnx", "--json"])
    assert ended.exit_code == 2
    assert "is the model itself" in json.loads(ended.stdout)["error"]
