"""`cohort init` copies the files that `cohort convert` wrote next to a model, and a label file."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from cohort.repository import load_model_config
from tests import onnx_models, text_models
from tests.cli.test_cli import run
from tests.e2e.processes import cohort

CONFIG = """\
inputs: {"text": {"tokenizer": "tokenizer.json", "max_length": 16}}
outputs: {"logits": {"labels": "labels.txt", "softmax": true}}
"""


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """A classifier as `cohort convert` leaves it."""
    path = onnx_models.save(text_models.classifier(), tmp_path / "made/mood.onnx")
    text_models.wordpiece().save(str(path.with_name("tokenizer.json")))
    path.with_name("labels.txt").write_text("bad\nfair\ngood\n")
    path.with_name("mood.config.yaml").write_text("# Written by it.\n" + CONFIG)
    return path


def test_sentences_are_served_by_one_command(converted: Path, tmp_path: Path) -> None:
    """Every API answers a text with a label."""
    models = tmp_path / "models"
    done = run("init", "mood", str(converted), "--models", str(models))
    assert done.exit_code == 0, done.output
    assert "mood.onnx as model.onnx, tokenizer.json, labels.txt" in done.stdout
    assert "commented out except inputs and outputs" in done.stdout
    config = load_model_config(models / "mood")
    assert (config.inputs["text"].max_length, config.outputs["logits"].softmax) == (16, True)
    assert "No problems: 1 model" in run("check", "--models", str(models)).stdout
    with cohort(models, tmp_path) as server:

        def post(path: str, body: object) -> httpx.Response:
            return httpx.post(server.url + path, json=body)

        simple = post("/predict", {"inputs": {"text": "very good"}}).json()
        (scores,) = simple["outputs"]["logits"]
        assert sum(scores) == pytest.approx(1)
        for body in ({"input": "very good"}, {"input": ["very good"]}):
            assert post("/predict", body).json()["prediction"] is not None
        plain = httpx.post(
            server.url + "/predict", content="very good", headers={"content-type": "text/plain"}
        )
        assert plain.status_code == 200, plain.text
        v1 = post("/v1/models/mood:predict", {"instances": ["very good", {"text": "bad"}][:1]})
        assert v1.status_code == 200, v1.text
        tensor = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["very good", "bad"]}
        v2 = post("/v2/models/mood/infer", {"inputs": [tensor]})
        assert v2.json()["outputs"][0]["data"][:3] == pytest.approx(scores, rel=1e-5)
        described = httpx.get(server.url + "/v2/models/mood").json()["inputs"]
        assert described == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        long = post("/predict", {"input": "very " * 60_000})
        assert long.status_code == 400
        assert "300,000 characters" in long.json()["error"]


def test_labels_go_to_the_output_that_fits(tmp_path: Path) -> None:
    """The number of columns decides; if no output fits, the command reports both numbers."""
    file = onnx_models.save(onnx_models.mlp(), tmp_path / "mlp.onnx")
    labels = tmp_path / "names.txt"
    labels.write_text("a\nb\nc\n")
    models = tmp_path / "models"
    done = run("init", "mlp", str(file), "--labels", str(labels), "--models", str(models))
    assert done.exit_code == 0, done.output
    assert load_model_config(models / "mlp").outputs["y"].labels == "labels.txt"
    assert (models / "mlp/1/labels.txt").read_text() == "a\nb\nc\n"
    labels.write_text("a\nb\n")
    done = run("init", "other", str(file), "--labels", str(labels), "--models", str(models))
    assert done.exit_code != 0
    assert "names.txt has 2 labels, and no float output has 2 columns" in done.output
    assert not (models / "other").exists()


def test_what_the_config_names_must_be_there(converted: Path, tmp_path: Path) -> None:
    """No file is copied if a file that the config names is missing."""
    converted.with_name("tokenizer.json").unlink()
    done = run("init", "mood", str(converted), "--models", str(tmp_path / "models"))
    assert "names tokenizer.json, which is not in the same folder" in done.output
    assert not (tmp_path / "models").exists()
