"""`cohort prepare recipe.yaml`: the whole way of a model, in a file."""

from __future__ import annotations

import json
import signal
from dataclasses import fields
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
import pytest
from click import Context

from cohort.cli import cli
from cohort.cli.frame import STOPPED
from cohort.cli.options import MISUSED, OK, PROBLEMS
from cohort_prepare.failures import Misused
from cohort_prepare.onnx_files import model_digest
from cohort_prepare.recipe import OPTIONS, SECTIONS, read_recipe
from tests.cli.test_cli import run
from tests.e2e.processes import ROOT, quick_command
from tests.waiting import PATIENCE, wait_until

TRAINING = """
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

def model():
    rows, labels = load_digits(return_X_y=True)
    chain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=50))
    return chain.fit(rows[:500].astype(np.float32), labels[:500])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a module that trains a model."""
    (tmp_path / "training.py").write_text(TRAINING)
    return tmp_path


def write(folder: Path, text: str) -> Path:
    """A recipe in the folder."""
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def prepared(path: Path, code: int = OK) -> Any:
    """The JSON object that the command prints."""
    done = run("prepare", str(path), "--json")
    assert done.exit_code == code, done.stderr
    return json.loads(done.stdout)


def test_the_same_files_give_the_same_model(folder: Path) -> None:
    """Paths and modules are relative to the recipe; each step has its digest."""
    path = write(folder, "source: training:model\nframework: sklearn\nwork: build\n")
    first = prepared(path)
    assert [one["step"] for one in first["steps"]] == ["convert"]
    assert first["steps"][0]["framework"] == "sklearn"
    assert first["sha256"] == model_digest(folder / "build/convert.onnx")
    assert prepared(path)["sha256"] == first["sha256"]
    assert {one.name for one in folder.iterdir()} >= {"build", "recipe.yaml", "training.py"}
    assert not [one.name for one in folder.iterdir() if one.name.startswith(".preparing")]


def test_the_files_it_reads_are_told_by_their_digests(folder: Path) -> None:
    """Two runs can be compared by them."""
    rows = np.zeros((3, 64), np.float32)
    np.savez(folder / "rows.npz", input=rows)
    path = write(folder, "source: training:model\nwork: build\nconvert: {example: rows.npz}\n")
    assert list(prepared(path)["inputs"]) == ["rows.npz"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("source: m:f\nwork: w\nconvert: {opsett: 18}", "convert: unknown key 'opsett'"),
        ("source: m:f\nwork: w\nconvert: {opset: 3}", "convert.opset: must be from 7 to 26"),
        ("source: m:f\nwork: w\nquantize: {recipe: int8}", "quantize.recipe: must be one of"),
        ("source: m:f\nwork: w\npublish: {to: models}", "publish.name: is missing"),
        ("source: m:f\nwork: w\nframework: scikit", "framework: must be one of"),
        ("source: m:f\nconvert: {}", "nothing would be kept"),
        ("source: m:f\npublish: {name: ../a, to: m}", "publish.name: a name has at most"),
        (
            "source: m:f\npublish: {name: a, to: 'https://a/m'}",
            "publish.to: cannot publish to a web server",
        ),
        ("source: m:f\npublish: {name: a, to: m, sign: a.pem}", "publish.sign: a.pem not found"),
        ("source: m:f\nwork: w\nquantize: {calibration: no.npz}", "no.npz not found"),
        ("source: m:f\nwork: w\nverify: {labels: recipe.yaml}", "verify.labels: need"),
        ("source: m:f\nwork: w\noptimize: {steps: [slin]}", "did you mean 'slim'"),
        ("source: m.onnx\nwork: w", "source: m.onnx not found"),
        (
            "source: m.onnx\nwork: w\nconvert: {opset: 20}",
            "convert: m.onnx is already an ONNX model",
        ),
        ("source: m:f\nwork: w\nadd_labels: {labels: no.txt}", "add_labels.labels: no.txt not fou"),
        ("source: m:f\nwork: w\nadd_image_input: {image: {sise: 3}}", "did you mean 'size'"),
        ("work: w", "source: is missing"),
        ("source: [", "line 1"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(folder: Path, text: str, said: str) -> None:
    """The error comes before any step runs."""
    found = prepared(write(folder, text), MISUSED)
    assert "recipe.yaml" in found["error"]
    assert said in found["error"]
    assert not (folder / "w").exists()


def test_a_recipe_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    """A missing recipe is reported like any missing file."""
    with pytest.raises(Misused, match="not found"):
        read_recipe(tmp_path / "recipe.yaml")


def test_a_source_that_crashes_ends_it_with_the_steps_code(folder: Path) -> None:
    """The error names the step."""
    (folder / "training.py").write_text("def model():\n    raise RuntimeError('no data')\n")
    path = write(folder, "source: training:model\nframework: sklearn\nwork: build\n")
    found = prepared(path, PROBLEMS)
    assert found["failed"] == "convert"
    assert found["error"].startswith("convert: ")
    assert "no data" in found["error"]
    (folder / "training.py").unlink()
    assert "training" in prepared(path, MISUSED)["error"]


ENDLESS = """
from pathlib import Path
from threading import Event

def model():
    Path("begun").touch()
    Event().wait()
"""


def test_ctrl_c_leaves_nothing(folder: Path) -> None:
    """An interrupt while the source is read leaves no model and no partial folder."""
    (folder / "training.py").write_text(ENDLESS)
    path = write(
        folder, "source: training:model\nframework: sklearn\npublish: {name: a, to: models}\n"
    )
    command = [*quick_command(), "prepare", str(path), "--json"]
    process = Popen(command, stdout=PIPE, stderr=PIPE, cwd=ROOT)
    wait_until((folder / "begun").exists)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == STOPPED
    assert not json.loads(said)["good"]
    left = {one.name for one in folder.iterdir()} - {"__pycache__"}
    assert left == {"begun", "recipe.yaml", "training.py"}


@pytest.mark.parametrize("step", [name for name in SECTIONS if not name.startswith("add_")])
def test_a_section_has_options_of_its_command(step: str) -> None:
    """The names are equal, so that the command's help is the section's help."""
    command = cli.get_command(Context(cli), step)
    assert command is not None
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    named = {one.name for one in fields(SECTIONS[step])}
    assert {OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in named} <= known
