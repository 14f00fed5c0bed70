"""`cohort publish` of language models: all their files, and the answers that each load compares."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cohort.cli import cli
from cohort.errors import LoadFailed
from cohort.generative.examples import GreedyAnswer, GreedyAnswers
from cohort.generative.factory import GenerativeEngines
from cohort.onnx_engine import VersionOpener
from cohort.registry import Source
from cohort.repository import (
    VERSION_FILES,
    Manifest,
    ModelConfig,
    TextExample,
    Trust,
    fingerprint_of,
    read_manifest,
    scan,
)
from cohort.session import CancellationToken
from cohort_prepare.failures import Misused
from cohort_prepare.publishing.language_models import read_texts
from models.decoder import write_decoder
from tests.plain_decoder import write_plain_decoder
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


def published(tmp_path: Path) -> Manifest:
    found = read_manifest(tmp_path / "models/chat/1")
    assert found is not None
    return found


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """A file with one example."""
    file = tmp_path / "hello.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "Hello"}]}')
    return file


def load(folder: Path, trust: Trust | None = None) -> None:
    engines = GenerativeEngines(wake=lambda queue: None, opener=VersionOpener(None, trust=trust))
    found = scan(folder.parents[1], quiet=0, kinds=VERSION_FILES).models["chat"].versions[1]
    source = Source(found.path, "", ModelConfig(), model="chat")
    engines.open(source, CancellationToken()).close()


def test_a_published_version_answers_as_recorded(model: Path, tmp_path: Path, hello: Path) -> None:
    """It has all files of the model; after a change of a file or an answer, it does not load."""
    (model.parent / "config.yaml").write_text("versions: all\n")
    found = publish(model, "--examples", hello)
    folder = tmp_path / "models/chat/1"
    assert (found["version"], found["manifest"]["texts"]) == (1, 1)
    manifest = published(tmp_path)
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


def test_without_examples_no_answers_are_recorded(model: Path, tmp_path: Path) -> None:
    """Servers with other processors, whose answers may differ, then load the version."""
    publish(model)
    assert published(tmp_path).texts == ()
    load(tmp_path / "models/chat/1")


@pytest.mark.parametrize("name", ["decoder.onnx", "model.onnx"])
def test_a_plain_decoder_becomes_the_file_that_servers_open(tmp_path: Path, name: str) -> None:
    """Its external data keep their names."""
    path = write_plain_decoder(tmp_path / "made")
    graph = onnx.load(path)
    path.unlink()
    decoder = path.with_name(name)
    onnx.save(graph, decoder, save_as_external_data=True, location="weights.bin")
    publish(decoder)
    main, *others = published(tmp_path).files
    assert main == "model.onnx"
    assert "weights.bin" in others
    assert "decoder.onnx" not in others
    load(tmp_path / "models/chat/1")
    assert publish(decoder)["already"]


def test_a_plain_decoder_next_to_another_main_file_is_refused(model: Path, tmp_path: Path) -> None:
    """A server would open the other file."""
    decoder = model.with_name("decoder.onnx")
    shutil.copyfile(model.with_name("model.onnx"), decoder)
    error = publish(decoder, code=2)["error"]
    model.unlink()
    assert "has genai_config.json next to decoder.onnx" in error
    assert "has model.onnx next to decoder.onnx" in publish(decoder, code=2)["error"]
    assert not (tmp_path / "models/chat/1").exists()


def test_each_answer_is_generated_once(
    model: Path, hello: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compared answer is the one that is recorded."""
    asked = []
    answer = GreedyAnswers.answer

    def counted(self: GreedyAnswers, example: TextExample) -> GreedyAnswer:
        asked.append(example)
        return answer(self, example)

    monkeypatch.setattr(GreedyAnswers, "answer", counted)
    publish(model, "--examples", hello)
    assert len(asked) == 1


def test_examples_that_take_half_of_a_load_are_refused(
    model: Path, hello: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each load generates them again, on servers that may be slower."""
    monkeypatch.setattr("cohort_prepare.publishing.language_models.MAX_SECONDS", -1)
    error = publish(model, "--examples", hello, code=1)["error"]
    assert "give fewer or shorter examples" in error
    assert not (tmp_path / "models/chat/1").exists()


@pytest.mark.parametrize("space", ["\u2028", "\u0085"])
def test_lines_of_examples_end_with_a_newline_only(tmp_path: Path, space: str) -> None:
    """Texts in JSON may have other ends of lines."""
    file = tmp_path / "examples.jsonl"
    file.write_text(json.dumps({"prompt": f"a{space}b"}, ensure_ascii=False), encoding="utf-8")
    assert read_texts(file) == [TextExample(f"a{space}b")]


def test_a_file_that_has_no_examples_is_misuse(tmp_path: Path) -> None:
    """The reason names the file, also for hostile files."""
    file = tmp_path / "examples.jsonl"
    for content in ("[" * 100_000, "no", "[]", "3", "", "\n" * (1 << 21)):
        file.write_text(content)
        with pytest.raises(Misused, match=r"examples.jsonl"):
            read_texts(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(Misused, match="cannot be read: it is not a file"):
        read_texts(file)


def test_given_examples_are_recorded_and_their_answers_checked(model: Path, tmp_path: Path) -> None:
    """A wrong answer is rejected, and nothing is published."""
    examples = tmp_path / "examples.jsonl"
    examples.write_text('{"prompt": "Hello", "max_tokens": 3}\n\n{"prompt": [7, 8, 9]}\n')
    publish(model, "--examples", examples)
    assert [len(one.tokens or ()) for one in published(tmp_path).texts] == [3, 16]
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


def test_a_folder_of_a_language_model_is_refused_with_the_file_to_name(model: Path) -> None:
    """The command takes the description, next to the other files."""
    assert f"is a folder; name {model}" in publish(model.parent, code=2)["error"]
