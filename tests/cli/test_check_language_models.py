"""`cohort check` of version folders with a genai_config.json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.bundled import MODELS
from tests.cli.test_cli import run

CONFIG = {
    "model": {
        "context_length": 64,
        "eos_token_id": 0,
        "decoder": {
            "filename": "model.onnx",
            "head_size": 8,
            "num_key_value_heads": 1,
            "num_hidden_layers": 1,
        },
    }
}


def test_a_language_model_without_a_tokenizer_is_a_problem(tmp_path: Path) -> None:
    """It is read as a language model, though it also has a model.onnx."""
    folder = tmp_path / "models" / "chat" / "1"
    folder.mkdir(parents=True)
    (folder / "genai_config.json").write_text(json.dumps(CONFIG))
    (folder / "model.onnx").write_bytes(b"not read before the tokenizer")
    ended = run("check", str(tmp_path / "models"))
    assert ended.exit_code == 1
    assert "chat/1/genai_config.json: tokenizer.json not found" in " ".join(ended.output.split())


def test_a_model_after_a_language_model_has_its_own_name(tmp_path: Path) -> None:
    """The table names each model of the folder."""
    shutil.copytree(MODELS / "smalltalk", tmp_path / "smalltalk")
    shutil.copytree(MODELS / "iris", tmp_path / "trees")
    ended = run("check", str(tmp_path))
    assert ended.exit_code == 0, ended.output
    rows = [line.split() for line in ended.output.splitlines()]
    assert [row[0] for row in rows if row[1:2] == ["1"]] == ["smalltalk", "trees"]


def test_keys_of_language_models_have_no_effect_on_others(tmp_path: Path) -> None:
    """They are noted for a classifier, and not for a language model."""
    for name in ("smalltalk", "iris"):
        shutil.copytree(MODELS / name, tmp_path / name)
        with (tmp_path / name / "config.yaml").open("a") as config:
            config.write("\ngeneration: {max_sequences: 2}\n")
    ended = run("check", str(tmp_path))
    assert ended.exit_code == 0, ended.output
    notes = [line for line in ended.output.splitlines() if "no effect" in line]
    assert notes == ["iris/config.yaml: generation has no effect: iris is not a language model"]
