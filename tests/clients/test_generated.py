"""Clients that generators make of the OpenAPI document, run against the real process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import MODELS, ROOT, Cohort, cohort

HERE = Path(__file__).parent
BIN = ROOT / ".venv-clients/bin"
PACKAGES = ROOT / ".npm/node_modules"

with_python = pytest.mark.skipif(
    not (BIN / "openapi-python-client").exists(),
    reason="openapi-python-client is missing: make .venv-clients/clients.stamp",
)
with_node = pytest.mark.skipif(
    not PACKAGES.exists(), reason="Redocly and openapi-typescript are missing: make .npm/npm.stamp"
)

GENERATOR = shutil.which("openapi-generator-cli", path=f"{BIN}:{os.environ['PATH']}")
with_generator = pytest.mark.skipif(
    GENERATOR is None or shutil.which("java") is None,
    reason="openapi-generator is missing: pip install openapi-generator-cli, and Java",
)

STRICT = "--noEmit --strict --skipLibCheck --target es2020 --module esnext --lib es2020,dom"

ROW = {"label": [0], "probabilities": [[1.0, 0.0, 0.0]]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Iris, and a model of each kind that a document has another form for."""
    folder = tmp_path_factory.mktemp("generated")
    models = folder / "models"
    shutil.copytree(MODELS / "iris", models / "iris")
    for name, model in {
        "image": onnx_models.identity("FP32", ("N", 3, 224, 224)),
        "no_inputs": onnx_models.no_inputs(),
        "scalar": onnx_models.scalar(),
        "sequence": onnx_models.sequence(),
        "text": onnx_models.strings(),
        "two.inputs": onnx_models.two_inputs(),
        "unknown-rank": onnx_models.unknown_rank(),
    }.items():
        onnx_models.save(model, models / name / "1/model.onnx")
    with cohort(models, folder) as started:
        yield started


@pytest.fixture(scope="module")
def document(server: Cohort, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's document, as a file."""
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_bytes(httpx.get(f"{server.url}/openapi.json").raise_for_status().content)
    return path


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a program that must succeed; return its output on both streams."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",  # Node.js is there
        "REDOCLY_TELEMETRY": "off",
        "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def rounded(value: Any) -> Any:
    """Scores differ in their last digit from one machine to another."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 3) if isinstance(value, float) else value


@with_python
def test_a_client_in_python_is_generated_whole_and_works(
    server: Cohort, document: Path, tmp_path: Path
) -> None:
    """openapi-python-client reads every operation, of every kind of model, without a warning."""
    config = tmp_path / "config.yaml"
    config.write_text("post_hooks: []\n")
    command: list[str | Path] = [BIN / "openapi-python-client", "generate", "--path", document]
    command += ["--config", config, "--meta", "none", "--output-path", tmp_path / "generated"]
    told = run(command, tmp_path)
    assert "WARNING" not in told, told
    assert "Warning" not in told, told
    calls: list[str | Path] = [BIN / "python", HERE / "generated_calls.py", tmp_path, server.url]
    answers = rounded(json.loads(run(calls, tmp_path).splitlines()[-1]))
    assert answers["by name"]["outputs"] == ROW
    assert answers["simple"]["prediction"] == ROW
    assert answers["rows"] == {"predictions": [{"label": 0, "probabilities": [1.0, 0.0, 0.0]}]}
    assert answers["infer"]["outputs"][0]["data"] == [0]
    assert answers["missing"]["code"] == "ModelNotFound"


@with_node
def test_a_client_in_typescript_fits_and_works(
    server: Cohort, document: Path, tmp_path: Path
) -> None:
    """openapi-typescript's types accept what the server accepts, and reject a wrong name."""
    for name in ("package.json", "tsconfig.json", "calls.ts"):
        shutil.copy(HERE / "typescript" / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    tools = PACKAGES / ".bin"
    run([tools / "openapi-typescript", document, "--output", "api.ts"], tmp_path)
    run([tools / "tsc", "--project", "."], tmp_path)
    answers = rounded(json.loads(run(["node", "calls.ts", server.url], tmp_path).splitlines()[-1]))
    assert answers["byName"]["outputs"] == ROW
    assert answers["simple"]["prediction"] == ROW
    assert answers["rows"] == {"predictions": [{"label": 0, "probabilities": [1, 0, 0]}]}
    assert answers["infer"]["outputs"][0]["data"] == [0]
    assert answers["refused"]["code"] == "InvalidInput"
    assert answers["missing"]["code"] == "ModelNotFound"


@with_generator
@with_node
def test_the_most_used_generator_writes_typescript_that_compiles(
    document: Path, tmp_path: Path
) -> None:
    """openapi-generator makes up types for unions of values without a type, and declares none."""
    command: list[str | Path] = [GENERATOR or "", "generate", "-g", "typescript-fetch"]
    run([*command, "-i", document, "-o", tmp_path / "made"], tmp_path)
    options = [*STRICT.split(), "--moduleResolution", "bundler"]
    run([PACKAGES / ".bin/tsc", *options, "index.ts"], tmp_path / "made")


@with_node
def test_redocly_has_nothing_to_say(document: Path, tmp_path: Path) -> None:
    """Its recommended rules find neither an error nor a warning."""
    told = run([PACKAGES / ".bin/redocly", "lint", document, "--format=stylish"], tmp_path)
    assert "valid" in told
    assert "warning" not in told, told
