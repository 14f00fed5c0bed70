"""`cohort convert`: a model of a framework becomes an ONNX model that gives the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from cohort.session import read_signature
from cohort.tensors import Array, Arrays
from cohort_prepare.converting import convert_source
from cohort_prepare.environments import Environment
from cohort_prepare.evaluating.cases import Cases
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import FRAMEWORKS, Reference
from cohort_prepare.source import SourceExport, SourceModel
from tests import onnx_models
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
    assert "expected a file, a folder" in json.loads(ended.stdout)["error"]
    assert not (training / "model.onnx").exists()


def test_names_of_classes_are_written_and_the_lines_that_show_them_told(training: Path) -> None:
    """They come from a file or a list, and their number is the columns of one output."""
    (training / "names.txt").write_text("setosa\nversicolor\nvirginica\n")
    for number, given in enumerate(["names.txt", "setosa, versicolor, virginica"]):
        out = f"models/iris/{number + 1}/model.onnx"
        ended = run_in(
            training, "convert", "training:model", "--classes", given, "--out", out, "--no-verify"
        )
        assert ended.exit_code == 0, ended.stderr
        *_, key, line = ended.stdout.strip().splitlines()
        (training / "models/iris/config.yaml").write_text(f"{key}\n{line}\n")
        signature = read_signature(training / out)
        assert signature is not None
        assert signature.outputs[-1].labels == ("setosa", "versicolor", "virginica")
        assert line.strip() == f'"{signature.outputs[-1].name}": {{labels: metadata}}'
    wrong = run_in(training, "convert", "training:model", "--classes", "a,b", "--out", "x.onnx")
    assert wrong.exit_code == 2
    assert "--classes names 2 classes, but no float output has 2 columns" in wrong.stderr


class Doubled(SourceModel):
    """A model that gives `compute` of its input, and is exported as what doubles it."""

    compute: Callable[[Array], Array]
    exported: onnx.ModelProto

    def export(self, out: Path, **_: object) -> SourceExport:
        onnx_models.save(type(self).exported, out)
        return SourceExport("doubled")

    def run_each(self, cases: Sequence[Arrays]) -> list[Arrays | str]:
        answers: list[Arrays | str] = []
        for case in cases:
            try:
                answers.append({"y": type(self).compute(case["x"])})
            except ValueError as error:
                answers.append(str(error))
        return answers


def doubled(
    compute: Callable[[Array], Array], exported: onnx.ModelProto | None = None
) -> SourceModel:
    exported = exported or onnx_models.times(2.0)
    made = type("Made", (Doubled,), {"compute": staticmethod(compute), "exported": exported})
    found = made(Reference("training:model"), FRAMEWORKS["pytorch"], Environment(()))
    assert isinstance(found, SourceModel)
    return found


EXAMPLE = Path("rows.npz"), Cases({"x": np.array([[1, 2, 3], [4, 5, 7]], np.float32)})


def test_branch_that_the_example_does_not_take_is_noticed(tmp_path: Path) -> None:
    """A module traced on positive rows is compared on others as well, and nothing is written."""

    def branching(x: Array) -> Array:
        numbers = np.asarray(x, np.float32)
        return numbers * 2 if numbers.sum() > 0 else numbers - 1

    out = tmp_path / "model.onnx"
    with pytest.raises(Rejected, match="depends on the inputs' values"):
        convert_source(doubled(branching), out, example=EXAMPLE)
    assert not out.exists()
    convert_source(doubled(branching), out, example=EXAMPLE, verify=False)
    assert out.exists()


def test_difference_is_that_of_the_example(tmp_path: Path) -> None:
    """Generated rows must agree, too, but are of any size: what they are off by means little."""

    def rounded(x: Array) -> Array:
        return np.asarray(x, np.float32) * np.float32(2.00001)

    found = convert_source(doubled(rounded), tmp_path / "model.onnx", example=EXAMPLE)
    assert found.difference is not None
    assert found.difference.max_absolute == pytest.approx(7e-5, rel=0.1)
    assert found.rows == 3  # two, and one again: the number of rows may be frozen
    found = convert_source(doubled(rounded), tmp_path / "model.onnx")
    assert found.difference is not None
    assert found.difference.max_absolute > 1e-4
    assert found.rows > 64


def test_example_is_enough_where_nothing_else_is_taken(tmp_path: Path) -> None:
    """A source that refuses all generated rows is compared on the example, or not at all."""

    def particular(x: Array) -> Array:
        if not np.isin(x, EXAMPLE[1].inputs["x"]).all():
            raise ValueError("an unknown number")
        return np.asarray(x, np.float32) * 2

    out = tmp_path / "model.onnx"
    found = convert_source(doubled(particular), out, example=EXAMPLE)
    assert "an unknown number" not in str(found.notes)
    assert "the source rejects them" in str(found.notes)
    with pytest.raises(Misused, match=r"an unknown number.*use --example"):
        convert_source(doubled(particular), tmp_path / "none.onnx")
    assert not (tmp_path / "none.onnx").exists()


def test_a_conversion_differs_in_no_row(tmp_path: Path) -> None:
    """A model that was quantized may decide otherwise in some rows; its conversion may not."""
    model = onnx_models.times(2.0)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name)
        for name, array in (("weight", np.int8(3)), ("scale", np.float32(1)))
    )
    node = onnx.helper.make_node("DequantizeLinear", ["weight", "scale"], ["unused"])
    model.graph.node.append(node)
    odd = np.array([9, 1, 2], np.float32)

    def reversed_once(x: Array) -> Array:
        doubles = np.asarray(x, np.float32) * 2
        return np.where((x == odd).all(1)[:, None], doubles[:, ::-1], doubles)

    rows = np.vstack([odd * 0 + np.arange(3, dtype=np.float32)] * 40 + [odd])
    example = Path("rows.npz"), Cases({"x": rows})
    with pytest.raises(Rejected, match=r"and was not written: in 1 of \d+ rows"):
        convert_source(doubled(reversed_once, model), tmp_path / "model.onnx", example=example)
