"""Publishing with steps on the way, each with its own tools."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from cohort.cli import cli
from cohort.repository import read_manifest
from tests import onnx_models

pytestmark = pytest.mark.skipif(
    os.environ.get("CONVERTERS") != "all", reason="takes minutes; `make converters` runs it"
)


def test_quantized_version_is_measured_beside_the_model(tmp_path: Path) -> None:
    """Its manifest has the step, both sizes and latencies, and a tolerance for other processors."""
    path = onnx_models.save(onnx_models.image_classifier(), tmp_path / "image.onnx")
    spec = onnx.load(path).graph.input[0]
    shape = [one.dim_value or 1 for one in spec.type.tensor_type.shape.dim]
    images = np.random.default_rng(0).random((16, *shape[1:])).astype("f4")
    rows = {spec.name: images}
    np.savez(tmp_path / "rows.npz", **rows)  # type: ignore[arg-type]
    arguments = [
        "publish",
        str(path),
        "--name",
        "image",
        "--to",
        str(tmp_path / "models"),
        "--json",
    ]
    steps = ["--optimize", "--quantize", "fp16", "--examples", str(tmp_path / "rows.npz")]
    done = CliRunner().invoke(cli, [*arguments, *steps, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["version"] == 1
    manifest = read_manifest(tmp_path / "models/image/1")
    assert manifest is not None
    assert [one.step for one in manifest.steps][-1] == "quantize"
    assert manifest.size_bytes is not None
    assert manifest.size_bytes.before == path.stat().st_size
    assert all(one.before for one in manifest.latency_ms.values())
    assert manifest.examples[0].tolerance.relative == 0.01
