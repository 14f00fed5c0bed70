"""`cohort convert` of language models; tests/converters runs the real builder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cohort_prepare.detecting import open_source
from cohort_prepare.failures import Misused
from cohort_prepare.frameworks import Reference
from cohort_prepare.frameworks.generative_models import GenerativeModels, builder_command
from cohort_prepare.language_models.converting import check_disk, version_folder, weights_of
from cohort_prepare.language_models.measuring import loss, windows
from tests.cohort_prepare.commands import run_in


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder with the files that are checked before any framework is started."""
    return hugging_face(tmp_path / "llama", "LlamaForCausalLM")


def hugging_face(folder: Path, architecture: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"shape": [1000, 2], "dtype": "F32"}, "__metadata__": {}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


@pytest.mark.parametrize(
    ("architecture", "framework"),
    [
        ("LlamaForCausalLM", "generative"),
        ("Qwen3ForCausalLM", "generative"),
        ("BertForSequenceClassification", "huggingface"),
        ("GPT2LMHeadModel", "huggingface"),
    ],
)
def test_a_language_model_is_known_by_its_architecture(
    tmp_path: Path, architecture: str, framework: str
) -> None:
    """Architectures that the builder does not know are exported by optimum, as before."""
    folder = hugging_face(tmp_path / "model", architecture)
    with open_source(str(folder), framework=None, python=None) as source:
        assert source.framework.name == framework


@pytest.mark.parametrize(
    ("architecture", "removed", "says"),
    [
        (
            "GPT2LMHeadModel",
            "",
            r"model is a GPT2LMHeadModel, which .* cannot convert; it converts .*Llama.*",
        ),
        ("BertModel", "", "--from huggingface without --precision"),
        ("LlamaForCausalLM", "tokenizer.json", r"no tokenizer.json: save it with AutoTokenizer"),
        ("LlamaForCausalLM", "model.safetensors", "no safetensors weights: save the model again"),
        (
            "LlamaForCausalLM",
            "config.json",
            r"config.json is missing or has no architecture: save the model",
        ),
    ],
)
def test_what_a_folder_lacks_is_said_before_the_builder_starts(
    tmp_path: Path, architecture: str, removed: str, says: str
) -> None:
    """The error names the file or architecture, and what to do."""
    folder = hugging_face(tmp_path / "model", architecture)
    if removed:
        (folder / removed).unlink()
    with pytest.raises(Misused, match=says):
        GenerativeModels().load(Reference(str(folder)))


def test_builder_reads_and_writes_local_folders_only(tmp_path: Path) -> None:
    """FP16 is built for CUDA, since the CPU's form of it cannot be run for a second token."""
    made = tmp_path / "work" / "version"
    command = builder_command(tmp_path / "llama", made, "int4")
    assert command[1:3] == ["-m", "onnxruntime_genai.models.builder"]
    options = dict(zip(command[3::2], command[4::2], strict=True))
    assert options == {
        "-m": str(tmp_path / "llama"),
        "-i": str(tmp_path / "llama"),
        "-o": str(made),
        "-p": "int4",
        "-e": "cpu",
        "-c": str(tmp_path / "work" / "cache"),
    }
    assert "cuda" in builder_command(tmp_path, made, "fp16")


def test_parameters_are_counted_without_reading_weights(llama: Path) -> None:
    """The header of safetensors has the shapes."""
    assert weights_of(llama) == (2000, (llama / "model.safetensors").stat().st_size)


def test_a_pointer_instead_of_weights_is_named(llama: Path) -> None:
    """A clone without Git LFS has small text files in place of weights."""
    (llama / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(Misused, match=r"not a safetensors file .* Git LFS may be"):
        weights_of(llama)


def test_lack_of_disk_space_is_said_before_the_work(tmp_path: Path) -> None:
    """The error states what is needed, what is free and which option helps."""
    check_disk(1_000_000_000, "int4", tmp_path / "chat/1", free=2_000_000_000)
    with pytest.raises(Misused, match=r"1,000.0 million .* up to 4.4 GB, and 2.0 GB .*--precision"):
        check_disk(1_000_000_000, "fp32", tmp_path / "chat/1", free=2_000_000_000)


def test_only_an_earlier_conversion_is_replaced(tmp_path: Path) -> None:
    """`--out` is the version folder, or model.onnx in it."""
    folder = tmp_path / "chat" / "1"
    assert version_folder(folder / "model.onnx") == version_folder(folder) == folder
    folder.mkdir(parents=True)
    (folder / "notes.txt").touch()
    with pytest.raises(Misused, match="has files that are not a language model"):
        version_folder(folder)
    (folder / "genai_config.json").touch()
    assert version_folder(folder) == folder
    with pytest.raises(Misused, match="version folder such as models/chat/1"):
        version_folder(tmp_path / "chat.onnx")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--opset", "20"], "--opset is not for language models"),
        (["--precision", "int8"], "'int8' is not one of 'fp32', 'fp16', 'int4'"),
        (["--from", "huggingface", "--precision", "int4"], "are for language models, not for"),
        (["--text", "missing.txt"], "--text missing.txt cannot be read: No such file"),
    ],
)
def test_options_that_do_not_fit_are_refused(llama: Path, arguments: list[str], says: str) -> None:
    """The command ends with 2 before an environment is made."""
    ended = run_in(llama.parent, "convert", "llama", "--out", "models/chat/1", *arguments, "--json")
    assert ended.exit_code == 2
    assert says in json.loads(ended.stdout)["error"]
    assert not (llama.parent / "models").exists()


def test_loss_is_of_each_token_after_the_first() -> None:
    """With equal logits, each token costs the logarithm of the vocabulary's size."""
    ids = [3, 1, 4, 1]
    assert loss(np.zeros((4, 8), np.float32), ids) == pytest.approx(3 * np.log(8))
    sure = np.full((4, 8), -1e4, np.float32)
    sure[[0, 1, 2], ids[1:]] = 1e4
    assert loss(sure, ids) == pytest.approx(0)


def test_text_is_cut_into_windows_that_have_a_next_token() -> None:
    """A last window of one token predicts nothing; the number of windows is bounded."""
    assert windows(range(9), 4) == [range(4), range(4, 8)]
    assert len(windows(range(10_000), 4)) == 8
