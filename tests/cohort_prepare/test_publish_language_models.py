"""`cohort publish` of language models: all their files, and the answers that each load compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cohort.cli import cli
from cohort.errors import LoadFailed
from cohort.generative.factory import GenerativeEngines
from cohort.onnx_engine import VersionOpener
from cohort.registry import Source
from cohort.repository import ModelConfig, Trust, fingerprint_of, read_manifest
from cohort.session import CancellationToken
from models.decoder import write_decoder
from tests.signed import OURS


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The description of a tiny language model."""
    return write_decoder(tmp_path / "made").parent / "genai_config.json"


def publish(model: Path, *options: object, code: int = 0) -> dict[str, Any]:
    """Run the command and return its JSON."""
    to = model.parents[1] / "models"
    arguments = ["publish", str(model), "--name", "chat", "--to", str(to), "--json"]
    done = CliRunner().invoke(cli, [*arguments, *map(str, options)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return dict(json.loads(done.stdout))


def load(folder: Path, trust: Trust | None = None) -> None:
    engines = GenerativeEngines(wake=lambda queue: None, opener=VersionOpener(None, trust=trust))
    source = Source(folder / "genai_config.json", "", ModelConfig(), model="chat")
    engines.open(source, CancellationToken()).close()


def test_a_published_version_answers_as_recorded(model: Path, tmp_path: Path) -> None:
    """It has all files of the model; after a change of a file or an answer, it does not load."""
    (model.parent / "config.yaml").write_text("versions: all\n")
    found = publish(model)
    folder = tmp_path / "models/chat/1"
    assert (found["version"], found["manifest"]["texts"]) == (1, 1)
    manifest = read_manifest(folder)
    assert manifest is not None
    names = {"genai_config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"}
    assert manifest.files.keys() == names
    (text,) = manifest.texts
    assert text.messages == ({"role": "user", "content": "Hello"},)
    assert text.tokens is not None
    assert 0 < len(text.tokens) <= 16
    load(folder)
    assert publish(model)["already"]
    content = json.loads((folder / "manifest.json").read_text())
    content["texts"][0]["answer"] += "?"
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(LoadFailed, match="text 1 of its manifest"):
        load(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(LoadFailed, match=r"'tokenizer_config.json' is not the file"):
        load(folder)


def test_given_examples_are_recorded_and_their_answers_checked(model: Path, tmp_path: Path) -> None:
    """A wrong answer is rejected, and nothing is published."""
    examples = tmp_path / "examples.jsonl"
    examples.write_text('{"prompt": "Hello", "max_tokens": 3}\n\n{"prompt": [7, 8, 9]}\n')
    publish(model, "--examples", examples)
    manifest = read_manifest(tmp_path / "models/chat/1")
    assert manifest is not None
    assert [len(one.tokens or ()) for one in manifest.texts] == [3, 16]
    wrong = {"prompt": "Hello", "max_tokens": 3, "answer": "no"}
    examples.write_text(json.dumps(wrong))
    assert "expected 'no'" in publish(model, "--examples", examples, code=1)["error"]
    examples.write_text("[]")
    publish(model, "--examples", examples, code=2)


def test_a_signed_language_model_loads_with_its_key(model: Path, tmp_path: Path) -> None:
    """Its main file may have any name. A template that was not signed keeps it from serving."""
    content = json.loads(model.read_text())
    content["model"]["decoder"]["filename"] = "decoder.onnx"
    model.write_text(json.dumps(content))
    (model.parent / "model.onnx").rename(model.parent / "decoder.onnx")
    key = tmp_path / "key.pem"
    key.write_bytes(OURS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    publish(model, "--sign", key)
    public = OURS.public_key()
    folder, trust = tmp_path / "models/chat/1", Trust({fingerprint_of(public): public})
    load(folder, trust)
    (folder / "chat_template.jinja").write_text("Say no.")
    with pytest.raises(LoadFailed, match=r"it has chat_template.jinja, which its signed"):
        load(folder, trust)
