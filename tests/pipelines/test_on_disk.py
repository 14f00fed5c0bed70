"""Checks of a pipeline before a server opens it; and unusual files."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.errors import LoadFailed
from cohort.pipelines import NotDeclared, check_pipeline, notes_on, read_pipeline
from cohort.repository import VERSION_FILES, scan
from tests import onnx_models
from tests.pipelines.graphs import affine
from tests.processing.pictures import channel_means

OUT = "outputs: {y: a.y}\n"


def step(name: str = "a", model: str = "small", given: str = "x", more: str = "") -> str:
    return f"{name}: {{model: {model}, inputs: {{x: {given}}}{more}}}"


def graph(*steps: str, out: str = OUT) -> str:
    return f"steps: {{{', '.join(steps)}}}\n{out}"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Models of width 4 and 8, one of pictures, one with state, and one with a transform."""
    folder = tmp_path / "models"
    for name, model in {
        "small": affine(2),
        "wide": affine(2, width=8),
        "look": channel_means(),
        "stateful": onnx_models.two_inputs(),
        "coded": affine(2),
    }.items():
        onnx_models.save(model, folder / name / "1/model.onnx")
    (folder / "look/config.yaml").write_text("inputs: {image: {image: {}}}\n")
    (folder / "stateful/config.yaml").write_text("state: {b: difference}\n")
    (folder / "coded/config.yaml").write_text("transform: t:T\n")
    return folder


def check(models: Path, text: str) -> list[str]:
    """Return the notes on a pipeline that is right."""
    folder = models / "whole"
    folder.mkdir(exist_ok=True)
    (folder / "pipeline.yaml").write_text(text)
    snapshot = scan(models, quiet=0, kinds=VERSION_FILES)
    found = snapshot.models["whole"].versions[1]
    return notes_on(check_pipeline(found, snapshot, "whole").graph)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (graph(step(model="smal")), "step 'a': model 'smal' not found; did you mean 'small'?"),
        (graph(step(more=", version: 9")), "step 'a': version '9' of model 'small' not found"),
        (
            graph(step(), step("b", "wide", "a.y"), out="outputs: {y: b.y}"),
            "step 'b': input 'x' must be FP32 [N, 8], but a.y is FP32 [N, 4]",
        ),
        (graph(step(model="whole")), "step 'a': pipeline 'whole': it needs itself"),
        (graph("a: {model: stateful, inputs: {a: x}}"), "step 'a': model 'stateful' has state"),
        (graph(step(), out="outputs: {y: {from: a.y, labels: labels.txt}}"), "no labels.txt"),
        (
            graph(step(), out="outputs: {y: {from: a.y, labels: [a, b, c]}}"),
            "3 labels for an output of 4 columns",
        ),
        ("inputs: {x: {image: {}}}\n" + graph(step()), "inputs.x: image gives"),
        (
            "inputs: {a.y: {}}\n" + graph(step(given="a.y")),
            "input 'a.y': an output of step 'a' has the same name; rename the input or the step",
        ),
        (graph(step(), out="outputs: {y: x}"), "no output comes from a step; 'a' is one"),
        (
            graph(*[step(f"s{at}", given=f"s{(at + 1) % 64}.y") for at in range(64)], out=OUT),
            "output 'y' is from 'a.y': step 'a' not found",
        ),
        (
            graph(
                *[step(f"s{at}", given=f"s{(at + 1) % 64}.y") for at in range(64)],
                out="outputs: {y: s0.y}",
            ),
            "through 's0' → 's1' → 's2' → 's3' → 's4' → 's5' → 's6' → 's7' → …; use another",
        ),
    ],
)
def test_what_does_not_fit_is_told(models: Path, text: str, said: str) -> None:
    """The error is the server's, and nothing is opened."""
    with pytest.raises(LoadFailed) as told:
        check(models, text)
    assert said in str(told.value)


def test_members_are_as_callers_see_them(models: Path) -> None:
    """A model whose config accepts pictures also accepts them in a step."""
    text = "steps: {a: {model: look, inputs: {image: x}}}\noutputs: {y: a.mean}\n"
    assert check(models, "inputs: {x: {datatype: BYTES, shape: [N]}}\n" + text) == []


def test_what_a_transform_takes_is_not_told(models: Path) -> None:
    """The transform's code is not run; this is not a mistake in the pipeline."""
    with pytest.raises(NotDeclared, match="'coded' has a transform"):
        check(models, graph(step(model="coded")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (graph(step(), step("b")), "step 'b' does not run: no output needs it"),
        (
            graph(step(more=", when: max(x) > 1")),
            "output 'y' fails where no step runs that it is from",
        ),
        (
            graph(step(), step("b"), out="outputs: {y: {from: [a.y, b.y]}}"),
            "output 'y' is never from b.y: a.y before it is there for every row",
        ),
        (
            graph(step(), step("b", given="[x, a.y]"), out="outputs: {y: b.y, z: a.y}"),
            "step 'b': input 'x' is never from a.y: x before it is there for every row",
        ),
    ],
)
def test_what_may_not_be_meant_is_noted(models: Path, text: str, said: str) -> None:
    """A pipeline with a likely mistake loads, and reports a note."""
    (note,) = check(models, text)
    assert note.startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#" + "x" * 1_000_000, "is too large: 1000001 bytes, at most 65536 are read"),
        ("steps: " + "[" * 60_000, "is nested too deeply"),
        ("a: &a [1]\n" + "b: &b [*a, *b]\n", "its aliases refer to themselves"),
        ("steps: !!python/object/apply:os.abort []", "could not determine a constructor"),
        (graph(step("../a")), "'../a' is not a valid step name"),
        (graph(r'"a\u202e\e[31m": {model: small, inputs: {x: x}}'), r"'a\u202e\x1b[31m' is no"),
        (graph(step(model=r'"m\0"')), r"'m\x00' is no model"),
        (graph(step(), out=r'outputs: {"y\e[2J": a.y}'), r"'y\x1b[2J' is not a valid tensor name"),
        (graph(step(), out="outputs: {'': a.y}"), "'' is not a valid tensor name"),
        (graph(step(given="x" * 300)), "is not a valid tensor name: use 1 to 256 printable"),
        (graph(*[step(f"s{at}") for at in range(65)]), "steps: must be 64 at most, got 65"),
    ],
)
def test_a_file_that_nobody_means_is_refused_at_once(tmp_path: Path, text: str, said: str) -> None:
    """The sentence is short enough for a terminal."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(text)
    with pytest.raises(LoadFailed) as told:
        read_pipeline(path)
    sentence = str(told.value)
    assert said in sentence
    assert sentence.isprintable()
    assert len(sentence) < 400
