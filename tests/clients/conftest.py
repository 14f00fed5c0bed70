"""One real server for all the clients that people bring."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests import onnx_models
from tests.e2e.processes import MODELS, Cohort, cohort, free_port

TOKEN = "open-sesame"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Models of several kinds, served by a separate process with an admin token."""
    folder = tmp_path_factory.mktemp("clients")
    models = folder / "models"
    labels = {"classes": json.dumps(["setosa", "versicolor", "virginica"])}
    for name, model in {
        "any_length": onnx_models.variable_length(),
        "fp16": onnx_models.identity("FP16"),
        "bf16": onnx_models.identity("BF16"),
        "bool": onnx_models.identity("BOOL"),
        "gather": onnx_models.gather(),
        "large": onnx_models.identity("FP32", ("N", "M")),
        "mlp": onnx_models.mlp(),
        "named": onnx_models.describe(onnx_models.identity(), labels),
        "no_inputs": onnx_models.no_inputs(),
        "pair": onnx_models.two_inputs(),
        "scalar": onnx_models.scalar(),
        "sequence": onnx_models.sequence(),
        "slow": onnx_models.slow(nodes=2000),
        "strings": onnx_models.strings(),
    }.items():
        onnx_models.save(model, models / name / "1/model.onnx")
    shutil.copytree(MODELS / "iris", models / "iris")
    shutil.copytree(MODELS / "digits", models / "digits")
    (models / "digits/config.yaml").write_text("versions: all\n")
    (models / "slow/config.yaml").write_text("timeout_ms: 600000\nload_timeout_s: 600\n")
    with cohort(
        models,
        folder,
        admin_token=TOKEN,
        max_body_mb=4,
        grpc_port=free_port(),
    ) as started:
        yield started
