"""The OpenAPI document and the server hold each other to their word.

schemathesis makes requests from the document, valid and not, and compares each answer with it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import onnx_models
from tests.e2e.processes import MODELS, cohort
from tests.waiting import PATIENCE

CONFIG = Path(__file__).with_name("schemathesis.toml")

MAX_FLOAT = 3.4028235677973366e38  # from here on a number is infinity

FORMATS: dict[str, dict[str, float]] = {
    "float": {
        "exclusiveMinimum": -3.4028235677973366e38,
        "exclusiveMaximum": 3.4028235677973366e38,
    },
    "int64": {"minimum": -(2**63), "maximum": 2**63 - 1},
}
"""What formats mean, which schemathesis does not know."""


def with_bounds(schema: Any) -> Any:
    """Return a document whose formats of numbers also have bounds."""
    if isinstance(schema, list):
        return [with_bounds(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    told = schema.get("format")
    bounds: dict[str, float] = FORMATS.get(told, {}) if isinstance(told, str) else {}
    return {**bounds, **{key: with_bounds(value) for key, value in schema.items()}}


def test_what_is_documented_is_what_is_answered(models: Path, tmp_path: Path) -> None:
    """The server does not fail, and all its answers are in the document.

    Bounded: `schemathesis --config-file tests/e2e/schemathesis.toml run http://…/openapi.json`
    against a local server tests more.
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
        document = tmp_path / "openapi.json"
        document.write_text(json.dumps(with_bounds(server.get("/openapi.json").json())))
        command: list[str | Path] = [
            Path(sys.executable).with_name("schemathesis"),
            "--config-file",
            CONFIG,
            "run",
        ]
        options = ["--max-examples=5", "--generation-deterministic", "--no-color"]
        options.append(f"--request-timeout={PATIENCE:g}")
        ran = subprocess.run(
            [*command, document, f"--url={server.url}", *options],
            cwd=tmp_path,  # it keeps a database there
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert '"code": "InferenceFailed"' not in server.logged
