"""Language models by onnxruntime-genai's builder, in the environment that uv makes for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cohort_prepare.environments import find_environment
from cohort_prepare.frameworks import FRAMEWORKS, LANGUAGE_MODELS
from tests.converters.record import record
from tests.e2e.processes import ROOT

pytestmark = pytest.mark.skipif(
    os.environ.get("CONVERTERS") != "all", reason="frameworks are fetched; make converters runs it"
)

SOURCES = Path(__file__).parent / "sources"
FILES = ["genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Llama of random weights, and its tokenizer and chat template."""
    folder = tmp_path_factory.mktemp("generative")
    in_environment(folder, "import generative_llama; generative_llama.save()")
    return folder


def in_environment(folder: Path, code: str) -> str:
    """Run code in the builder's environment, in `folder`; return what it prints."""
    command = find_environment(FRAMEWORKS["generative"]).command
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); {code}"
    return subprocess.run(
        [*command, "-c", code], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
def test_a_llama_becomes_a_version_folder(folder: Path, precision: str) -> None:
    """Tokenizer, chat template and context length are kept; FP32 chooses the source's tokens."""
    (folder / "text.txt").write_text("A caller who leaves frees the slot. " * 20)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cohort", "convert", "llama", "--out", "models/chat/1"),
            *("--precision", precision, "--text", "text.txt", "--json"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'app'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    version = folder / "models" / "chat" / "1"
    assert {*FILES} <= {one.name for one in version.iterdir()}
    assert (found["context_length"], found["chat_template"]) == (256, True)
    assert found["framework"] == "generative"
    assert [one.name for one in version.parent.iterdir()] == ["1"]
    measured = found["measured"]
    assert measured["tokens_per_second"]["converted"] > 0
    if precision == "fp32":
        assert measured["agreement"] > 0.99  # random weights may have near ties
        assert measured["greedy"] == {"equal": 32, "of": 32}
        assert found["difference"]["max_absolute"] < 1e-3
    if precision == "int4":
        assert found["bytes"] < found["source_bytes"] / 2
    record(found, source="a folder with config.json")
    checked = subprocess.run(
        [sys.executable, "-m", "cohort", "check", "models"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'app'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    assert "text_output BYTES" in checked.stdout


def test_the_builder_knows_each_architecture(folder: Path) -> None:
    """The list that decides between the builder and optimum is not ahead of the builder."""
    code = "from importlib.util import find_spec; print(find_spec('onnxruntime_genai').origin)"
    module = Path(in_environment(folder, code).strip()).parent
    text = (module / "models" / "builder.py").read_text(encoding="utf-8")
    assert [one for one in LANGUAGE_MODELS if f'"{one}"' not in text] == []
