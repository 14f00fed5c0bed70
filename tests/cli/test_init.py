"""`cohort init`: a folder for a model, with a config that editors know."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from cohort.cli.editor_schemas import packaged
from cohort.cli.options import PROBLEMS
from cohort.pipelines import parse_pipeline
from cohort.repository import ModelConfig, load_model_config, scan
from cohort.rollouts import load_rollouts
from models.decoder import write_decoder
from tests import onnx_models
from tests.cli.test_cli import run
from tests.pipelines.graphs import affine
from tests.plain_decoder import write_plain_decoder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The folder, which is not there yet."""
    return tmp_path / "models"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A model as PyTorch exports it: `my.onnx`, and its weights in `my.onnx.data`."""
    path = tmp_path / "my.onnx"
    onnx.save_model(
        onnx_models.mlp(),
        path,
        save_as_external_data=True,
        location="my.onnx.data",
        size_threshold=0,
    )
    return path


def schema_named_by(file: Path) -> Path:
    """The file that the first line names, as an editor finds it."""
    first = file.read_text().splitlines()[0]
    (way,) = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", first)
    return (file.parent / str(way)).resolve()


def test_a_model_is_copied_with_all_its_files(models: Path, exported: Path) -> None:
    """The files that it refers to are copied as well, so it opens."""
    done = run("init", "mine", str(exported), "--models", str(models))
    assert done.exit_code == 0
    assert "my.onnx as model.onnx, my.onnx.data" in done.stdout
    checked = run("check", "--models", str(models))
    assert "No problems: 1 model, 1 version." in checked.stdout


def test_without_a_file_there_is_a_place_for_one(models: Path, exported: Path) -> None:
    """The same command fills it later."""
    assert run("init", "mine", "--models", str(models)).exit_code == 0
    assert not any((models / "mine" / "1").iterdir())
    assert run("init", "mine", str(exported), "--models", str(models)).exit_code == 0
    assert list(scan(models, quiet=0).models) == ["mine"]


def test_the_config_says_nothing_yet_and_names_its_schema(models: Path) -> None:
    """The new folder has a config without settings and is not taken for a model."""
    run("init", "mine", "--models", str(models))
    config = models / "mine" / "config.yaml"
    assert load_model_config(config.parent) == ModelConfig()
    assert schema_named_by(config).read_text() == packaged("config.schema.json")
    assert [str(one) for one in scan(models, quiet=0).problems] == ["mine/1: has no model.onnx"]


def test_nothing_is_overwritten(models: Path, exported: Path) -> None:
    """A config or version is not replaced; another version is added."""
    run("init", "mine", str(exported), "--models", str(models))
    config = models / "mine" / "config.yaml"
    config.write_text("timeout_ms: 1\n")
    model = models / "mine" / "1" / "model.onnx"
    model.write_bytes(b"another")
    again = run("init", "mine", str(exported), "--models", str(models))
    assert again.exit_code == PROBLEMS
    assert "already exists" in again.stderr
    assert run("init", "mine", str(exported), "--version", "2", "--models", str(models)).stdout
    assert config.read_text() == "timeout_ms: 1\n"
    assert model.read_bytes() == b"another"
    assert list(scan(models, quiet=0).models["mine"].versions) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["my.onnx"], "the name comes first: cohort init my my.onnx"),
        (["my.onnx", "mine"], "the name comes first: cohort init mine my.onnx"),
        (["out/my.onnx", "mine"], "the name comes first: cohort init mine out/my.onnx"),
        (["../mine"], "a name has at most 128 letters"),
        (["mine", "gone.onnx"], "gone.onnx not found"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_made(
    models: Path, arguments: list[str], said: str
) -> None:
    """The message states what to do."""
    done = run("init", *arguments, "--models", str(models))
    assert done.exit_code == PROBLEMS
    assert said in done.stderr
    assert not models.exists()


def test_weights_that_are_missing_are_named(models: Path, exported: Path) -> None:
    """The file is refused before anything is made."""
    exported.with_name("my.onnx.data").unlink()
    done = run("init", "mine", str(exported), "--models", str(models))
    assert done.exit_code == PROBLEMS
    assert "'my.onnx.data' is missing" in done.stderr
    assert not models.exists()


def test_what_is_linked_is_copied(models: Path, exported: Path) -> None:
    """The cache of a model hub links to files under other names."""
    blobs = exported.parent / "blobs"
    blobs.mkdir()
    for number, file in enumerate((exported, exported.with_name("my.onnx.data"))):
        file.rename(blobs / str(number))
        file.symlink_to(blobs / str(number))
    assert run("init", "mine", str(exported), "--models", str(models)).exit_code == 0
    assert not (models / "mine" / "1" / "my.onnx.data").is_symlink()
    assert run("check", "--models", str(models)).exit_code == 0


def test_a_copy_that_fails_leaves_nothing(
    models: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No half of a version, and no folder that is not a version's."""

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("shutil.copyfile", full)
    done = run("init", "mine", str(exported), "--models", str(models))
    assert done.exit_code == PROBLEMS
    assert "No space left on device" in done.stderr
    assert sorted(one.name for one in (models / "mine").iterdir()) == ["1", "config.yaml"]
    assert not any((models / "mine" / "1").iterdir())


def test_a_new_rollouts_file_names_its_schema(models: Path, exported: Path) -> None:
    """Later edits leave the line as it is."""
    for version in ("1", "2"):
        run("init", "mine", str(exported), "--models", str(models), "--version", version)
    file = models.parent / "rollouts.yaml"
    given = ["rollout", "set", "mine", "a=9", "b=1", "--version", "a=1", "--version", "b=2"]
    assert run(*given, "--models", str(models)).exit_code == 0
    assert schema_named_by(file).read_text() == packaged("rollouts.schema.json")
    assert run("rollout", "set", "mine", "b=5", "--models", str(models)).exit_code == 0
    assert schema_named_by(file).is_file()
    assert load_rollouts(file)["mine"].rollout.variants["b"].weight == 5


def test_a_pipeline_of_models_is_written(models: Path, exported: Path) -> None:
    """It names their inputs and outputs, and its schema, and is right as it is."""
    for name in ("small", "v1.0", "on"):
        assert run("init", name, str(exported), "--models", str(models)).exit_code == 0
    onnx_models.save(affine(inputs=("input.1", "y/z:0")), models / "torch/1/model.onnx")
    members = [f"--pipeline={name}" for name in ("torch", "small", "v1.0", "on")]
    done = run("init", "whole", *members, "--models", str(models))
    assert done.exit_code == 0, done.stderr
    file = models / "whole/pipeline.yaml"
    assert schema_named_by(file).read_text() == packaged("pipeline.schema.json")
    pipeline = parse_pipeline(file.read_text())
    steps = {name: step.model for name, step in pipeline.steps.items()}
    assert steps == {"torch": "torch", "small": "small", "on": "on", "v1_0": "v1.0"}
    assert pipeline.outputs["v1_0_y"] == ("v1_0.y",)
    checked = run("check", "--models", str(models))
    assert checked.exit_code == 0, checked.stdout
    again = run("init", "whole", *members, "--models", str(models))
    assert "already exists" in again.stderr
    gone = run("init", "other", "--pipeline", "smal", "--models", str(models))
    assert gone.exit_code == PROBLEMS
    assert "model 'smal' not found; did you mean 'small'?" in gone.stderr
    assert not (models / "other").exists()
    both = run("init", "other", str(exported), "--pipeline", "small", "--models", str(models))
    assert "cannot be combined with FILE" in both.stderr


def test_a_transform_is_written_with_its_test(models: Path, exported: Path) -> None:
    """The config names it, the test passes as it is, and a second time nothing is overwritten."""
    command = ("init", "mine", str(exported), "--transform", "--models", str(models))
    assert run(*command).exit_code == 0
    folder = models / "mine"
    assert load_model_config(folder).transform == "transform:Transform"
    assert "def before" in (folder / "transform.py").read_text()
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)],
        cwd=folder, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout
    assert "No problems" in run("check", "--models", str(models)).stdout
    (folder / "transform.py").write_text("mine")
    run("init", "mine", "--transform", "--version", "2", "--models", str(models))
    assert (folder / "transform.py").read_text() == "mine"


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """The folder of a language model, as GenAI's builder writes it."""
    return write_decoder(tmp_path / "chat" / "1").parent


@pytest.mark.parametrize("named", ["model.onnx", "genai_config.json", ""])
def test_a_language_model_is_copied_with_its_folder(models: Path, chat: Path, named: str) -> None:
    """The decoder, the description and the folder all name the same language model."""
    (chat / "manifest.json").write_text("{}")
    done = run("init", "chat2", str(chat / named), "--models", str(models))
    assert done.exit_code == 0, done.stderr
    copied = {one.name for one in (models / "chat2" / "1").iterdir()}
    assert copied == {one.name for one in chat.iterdir()} - {"manifest.json"}
    for name in copied:
        assert name in done.stdout
    checked = run("check", "--models", str(models))
    assert "language model" in checked.stdout


def test_a_plain_decoder_is_copied_with_its_tokenizer(models: Path, tmp_path: Path) -> None:
    """The export gets the name model.onnx, and keeps its neighbours."""
    exported = write_plain_decoder(tmp_path / "plain")
    exported = exported.rename(exported.with_name("decoder.onnx"))
    done = run("init", "chat2", str(exported), "--models", str(models))
    assert "decoder.onnx as model.onnx" in done.stdout
    checked = run("check", "--models", str(models))
    assert "language model" in checked.stdout


def test_a_folder_without_a_model_is_refused(models: Path, tmp_path: Path) -> None:
    """The message names the files that a model's folder may have."""
    done = run("init", "mine", str(tmp_path), "--models", str(models))
    assert done.exit_code == PROBLEMS
    assert "has neither genai_config.json nor model.onnx" in done.stderr
    assert not models.exists()


def test_a_language_model_has_no_labels(models: Path, chat: Path) -> None:
    """Options for tensors are refused before anything is made."""
    done = run("init", "mine", str(chat), "--transform", "--models", str(models))
    assert done.exit_code == PROBLEMS
    assert "do not apply to language models" in done.stderr
    assert not models.exists()
