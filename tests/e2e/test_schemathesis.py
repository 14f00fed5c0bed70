"""The OpenAPI document and the server hold each other to their word.

schemathesis makes requests from the document, valid and not, and compares each answer with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests import onnx_models
from tests.e2e.processes import MODELS, cohort
from tests.waiting import PATIENCE

CONFIG = Path(__file__).with_name("schemathesis.toml")


def test_what_is_documented_is_what_is_answered(models: Path, tmp_path: Path) -> None:
    """No failure of the server, no answer that the document does not have.

    Bounded: `schemathesis --config-file tests/e2e/schemathesis.toml run http://…/openapi.json`
    against a server of your own looks further.
    """
    shutil.copytree(MODELS / "iris", models / "iris")
    for name, model in {
        "whole.numbers": onnx_models.identity("INT64", ["N", 2]),
        "half": onnx_models.identity("FP16", ["N", 2]),
        "strings": onnx_models.strings(),
        "scalar": onnx_models.identity("FP32", []),
    }.items():
        onnx_models.save(model, models / name / "1/model.onnx")
    with cohort(models, tmp_path, admin_token="nobody-has-it") as server:
        command: list[str | Path] = [
            Path(sys.executable).with_name("schemathesis"),
            "--config-file",
            CONFIG,
            "run",
        ]
        options = ["--max-examples=5", "--generation-deterministic", "--no-color"]
        options.append(f"--request-timeout={PATIENCE:g}")
        ran = subprocess.run(
            [*command, server.url + "/openapi.json", *options],
            cwd=tmp_path,  # it keeps a database there
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert '"code": "InferenceFailed"' not in server.logged
