"""A model in its framework, exported and run in a child process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from cohort.comparing import Pair, Tolerance, explain
from cohort.session import open_session
from cohort_prepare.detecting import open_source
from cohort_prepare.environments import find_environment
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import FRAMEWORKS, Reference
from cohort_prepare.source import SourceModel

TRAINING = """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

def model():
    return LogisticRegression(max_iter=500).fit(*load_iris(return_X_y=True))

def broken():
    raise ValueError("no data today")

def deadly():
    import os, signal
    os.kill(os.getpid(), signal.SIGSEGV)

nothing = None
"""


@pytest.fixture(autouse=True)
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's, where the command is run; its package is called as ours is."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "training.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)


def source(text: str) -> SourceModel:
    framework = FRAMEWORKS["sklearn"]
    return SourceModel(Reference(text), framework, find_environment(framework))


def test_source_is_exported_and_run(tmp_path: Path) -> None:
    """The exported model gives what the framework gives, by the same names."""
    rows = np.array([[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]], np.float32)
    with source("app.training:model") as model:
        made = model.export(tmp_path / "model.onnx")
        (expected,) = model.run([{"input": rows}])
    session = open_session(tmp_path / "model.onnx")
    got = dict(
        zip([one.name for one in session.outputs], session.run({"input": rows}), strict=True)
    )
    assert made.versions["scikit-learn"]
    assert got["label"].tolist() == [0, 2]
    expected["probabilities"] = expected["probabilities"].astype(np.float32)
    assert explain(Pair(expected, got), Tolerance(1e-5)) == ""


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("nowhere:model", Misused, "'nowhere' cannot be imported from this folder"),
        ("app.training:modle", Misused, "has no 'modle'"),
        ("app.training:broken", Rejected, "ValueError: no data today"),
        ("app.training:deadly", Rejected, "SIGSEGV"),
        ("app.training:nothing", Misused, "is it fitted"),
        ("model.joblib", Misused, "--trust-pickle"),
    ],
)
def test_what_is_wrong_with_a_source_is_said(
    text: str, error: type[Exception], said: str, tmp_path: Path
) -> None:
    """A module that is not there, a wrong name, an exception and a crash: a sentence each."""
    with pytest.raises(error, match=said), source(text) as model:
        model.export(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_one_process_loads_a_model_once(tmp_path: Path) -> None:
    """It answers all requests about the model; a crashed process is replaced."""
    (tmp_path / "counting.py").write_text(COUNTING)
    with open_source("counting:model") as model:
        model.export(tmp_path / "model.onnx")
        for _ in range(2):
            (outputs,) = model.run([{"input": np.zeros((1, 2), np.float32)}])
            assert outputs["prediction"].shape == (1, 1)
        pids = (tmp_path / "loads").read_text().split()
        assert len(pids) == 1
        os.kill(int(pids[0]), signal.SIGKILL)
        with pytest.raises(Rejected, match="SIGKILL"):
            model.run([])
        assert model.run([]) == []
    assert len(set((tmp_path / "loads").read_text().split())) == 2


COUNTING = """
import os
from sklearn.linear_model import LinearRegression

def model():
    with open("loads", "a") as file:
        file.write(f"{os.getpid()} ")
    return LinearRegression().fit([[0.0, 1.0], [1.0, 0.0]], [0.0, 1.0])
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("meta-llama/Llama-3.2-1B", "hf download meta-llama/Llama-3.2-1B --local-dir FOLDER"),
        ("model.onnx", "is an ONNX file already: cohort init NAME model.onnx serves it"),
        ("notes.md", "no framework is known for files ending in .md; set --from"),
        ("lost.pt", r"not found \(expected a file, a folder or module:callable\)$"),
    ],
)
def test_an_argument_that_is_no_source_is_refused_with_the_next_step(text: str, said: str) -> None:
    """Nothing is loaded, and hidden files are not suggested."""
    for name in ("model.onnx", "notes.md", ".hidden.txt"):
        Path(name).touch()
    with pytest.raises(Misused, match=said), open_source(text):
        raise AssertionError
