"""PyTorch, Keras, TensorFlow, PaddlePaddle and Hugging Face, each in a separate environment.

One model of each is trained on scikit-learn's digits and converted by the command. `make
converters` puts the results into the table of docs/reports/conversions.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohort.session import open_session
from tests.converters.record import record
from tests.e2e.processes import ROOT

pytestmark = pytest.mark.skipif(
    os.environ.get("CONVERTERS") != "all", reason="frameworks are fetched; make converters runs it"
)

SOURCES = Path(__file__).parent / "sources"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the commands, with the modules that make models, and digits to try."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("sources")
    for source in SOURCES.glob("*.py"):
        (folder / source.name).write_text(source.read_text())
    digits = load_digits()
    np.savez(folder / "digits.npz", images=digits.images[:1000] / 16, labels=digits.target[:1000])
    images = (digits.images[:32] / 16).astype(np.float32)
    np.savez(folder / "images.npz", image=images[:, None])
    np.savez(folder / "last.npz", image=images[..., None])
    return folder


def cohort(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run a command there: return its exit code, its JSON and its standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "cohort", *arguments, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def make(folder: Path, framework: str, function: str) -> None:
    """Have a framework write files, in the environment that the command would use."""
    from cohort_prepare.environments import find_environment
    from cohort_prepare.frameworks import FRAMEWORKS

    command = find_environment(FRAMEWORKS[framework]).command
    code = f"import sys; sys.path.insert(0, '.'); from {framework}_digits import {function}; "
    subprocess.run([*command, "-c", code + f"{function}()"], cwd=folder, check=True)


@pytest.mark.parametrize(
    ("framework", "source", "saves"),
    [
        ("pytorch", "pytorch_digits:cnn", None),
        ("pytorch", "digits.pt2", "save_program"),
        ("keras", "digits.keras", "save"),
        ("tensorflow", "saved", "save"),
        ("paddle", "paddle_digits:cnn", None),
        ("paddle", "digits.json", "save"),
    ],
)
def test_digits_are_told_apart_as_before(
    folder: Path, framework: str, source: str, saves: str | None
) -> None:
    """A network of each framework is converted by one command, with open rows and names."""
    if saves is not None:
        make(folder, "keras" if framework == "tensorflow" else framework, saves)
    last = framework in {"keras", "tensorflow"}
    example = ["--example", "last.npz" if last else "images.npz"]
    from sklearn.datasets import load_digits

    named = ["--from", framework] if source.endswith(".json") else []
    named += ["--trust-pickle"] if source.endswith(".pt2") else []
    out = folder / f"{framework}.onnx"
    code, found, said = cohort(folder, "convert", source, "--out", str(out), *example, *named)
    assert code == 0, said
    assert (found["framework"], found["inputs"][0]["name"]) == (framework, "image")
    assert found["inputs"][0]["shape"][0] == "rows"
    assert found["difference"]["max_absolute"] < 1e-4
    session = open_session(out)
    digits = load_digits()
    images = (digits.images[1000:] / 16).astype(np.float32)
    scores = session.run({"image": images[..., None] if last else images[:, None]})[0]
    right = float(np.mean(np.asarray(scores).argmax(1) == digits.target[1000:]))
    assert right > 0.8  # it was trained for some seconds on the first thousand
    text = out.read_bytes()
    assert str(folder).encode() not in text  # nor anything else of this machine
    record(found, source=source, accuracy=right)


def test_text_classifier_of_a_folder_is_converted(folder: Path) -> None:
    """A Hugging Face folder gives open rows and lengths, and classes from its config."""
    make(folder, "huggingface", "save")
    out = folder / "text.onnx"
    code, found, said = cohort(folder, "convert", "text", "--out", str(out))
    assert code == 0, said
    assert found["framework"] == "huggingface"
    assert found["classes"] == {"logits": ["negative", "positive"]}
    names = [Path(one).name for one in found["beside"]]
    assert names == ["tokenizer.json", "labels.txt", "text.config.yaml"]
    assert (folder / "labels.txt").read_text() == "negative\npositive\n"
    assert '"softmax": true' in (folder / "text.config.yaml").read_text()
    session = open_session(out)
    for rows, length in ((1, 4), (3, 9)):
        ids = np.ones((rows, length), np.int64)
        feeds = {spec.name: ids for spec in session.inputs}
        assert np.asarray(session.run(feeds)[0]).shape == (rows, 2)
    record(found, source="a folder with config.json")


def test_same_source_gives_the_same_bytes(folder: Path) -> None:
    """Conversion draws nothing at random, and writes no time or place into the model."""
    digests = set()
    for number in (1, 2):
        out = folder / f"again-{number}.onnx"
        code, found, said = cohort(folder, "convert", "pytorch_digits:small", "--out", str(out))
        assert code == 0, said
        digests.add(found["sha256"])
    assert len(digests) == 1


def test_frozen_branch_is_noticed(folder: Path) -> None:
    """A branch on values cannot be traced: the model is refused, and the error names the cause.

    This holds also if the example takes only one side of it.
    """
    np.savez(folder / "ones.npz", x=np.ones((4, 3), np.float32))
    for example in ((), ("--example", "ones.npz")):
        arguments = ("convert", "pytorch_digits:branching", "--out", "branch.onnx", *example)
        code, found, _ = cohort(folder, *arguments)
        assert code == 1
        assert "a branch on values" in found["error"]
    assert not (folder / "branch.onnx").exists()


def test_frozen_rows_are_noticed(folder: Path) -> None:
    """They are found also if the example has as many rows as the older exporter was given."""
    np.savez(folder / "two.npz", x=np.ones((2, 3), np.float32))
    more = ["--example", "two.npz", "--out", "cut.onnx"]
    code, found, _ = cohort(folder, "convert", "pytorch_digits:Cut", *more)
    assert (code, "differs" in found["error"]) == (1, True), found
    assert not (folder / "cut.onnx").exists()


def test_weights_are_loaded_into_the_factorys_module(folder: Path) -> None:
    """Safetensors are read without unpickling; the error about wrong weights names them."""
    make(folder, "pytorch", "save_weights")
    asked = ["convert", "pytorch_digits:small", "--out", "weights.onnx", "--weights"]
    code, found, said = cohort(folder, *asked, "small.safetensors")
    assert code == 0, said
    plain = cohort(folder, "convert", "pytorch_digits:small", "--out", "plain.onnx")[1]
    assert found["sha256"] != plain["sha256"]
    code, found, _ = cohort(folder, *asked, "other.safetensors")
    assert code == 2
    assert "does not fit the module: it lacks" in found["error"]


def test_weights_that_are_tied_are_loaded_into_both(folder: Path) -> None:
    """save_model leaves one name in the file for two names in the module."""
    make(folder, "pytorch", "save_weights")
    weight = np.load(folder / "tied.npy")
    asked = ["convert", "pytorch_digits:tied", "--out", "tied.onnx", "--weights"]
    code, _, said = cohort(folder, *asked, "tied.safetensors")
    assert code == 0, said
    rows = np.array([[1, 2, 3]], np.float32)
    got = np.asarray(open_session(folder / "tied.onnx").run({"x": rows})[0], float)
    np.testing.assert_allclose(got, rows @ weight.T @ weight.T, rtol=1e-5)


def test_programs_with_objects_are_not_read(folder: Path) -> None:
    """A .pt2 file may hold code and pickles, so none is read without --trust-pickle."""
    make(folder, "pytorch", "save_hostile")
    code, found, _ = cohort(folder, "convert", "plain.pt2", "--out", "hostile.onnx")
    assert (code, "--trust-pickle" in found["error"]) == (2, True)
    code, found, _ = cohort(folder, "convert", "hostile.pt2", "--out", "hostile.onnx")
    assert (code, (folder / "ran").exists()) == (2, False)
    assert "--trust-pickle" in found["error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pytorch_digits:bare"], "add --example inputs.npz with the arrays image"),
        (["pytorch_digits:text"], "not a torch.nn.Module"),
        (["small.safetensors"], "add --weights small.safetensors"),
        (["pytorch_digits:small", "--dynamic", "imge:1=width"], "the inputs are x"),
    ],
)
def test_what_is_missing_is_said(folder: Path, arguments: list[str], said: str) -> None:
    """The error names what to add; the exit code is 2."""
    if "small.safetensors" in arguments:
        make(folder, "pytorch", "save_weights")
    more = ["--from", "pytorch", "--out", "none.onnx"]
    code, found, _ = cohort(folder, "convert", *arguments, *more)
    assert code == 2, found
    assert said in found["error"]


def test_open_lengths_are_exported(folder: Path) -> None:
    """--dynamic opens another dimension than the rows."""
    more = ["--dynamic", "x:1=length", "--out", "length.onnx"]
    code, found, said = cohort(folder, "convert", "pytorch_digits:summed", *more)
    assert code == 0, said
    assert found["inputs"][0]["shape"] == ["rows", "length"]
