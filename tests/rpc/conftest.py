"""One server with a model for each question, for all tests that only ask it things."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cohort.tensors import STANDARD
from tests import onnx_models
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.rpc.client import Client, connected

DATATYPES = [*(datatype.name for datatype in STANDARD), "FP8E4M3FN"]  # and one that is ours


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Serves an identity of every datatype, and some more."""
    folder = tmp_path_factory.mktemp("rpc")
    models = {
        **{
            f"identity_{datatype.lower()}": onnx_models.identity(datatype, ("N", 3))
            for datatype in DATATYPES
        },
        "scalar": onnx_models.scalar(),
        "any_rank": onnx_models.unknown_rank(),
        "two_inputs": onnx_models.two_inputs(),
        "no_inputs": onnx_models.no_inputs(),
        "strings": onnx_models.strings(),
        "gather": onnx_models.gather(),
        "sequence": onnx_models.sequence(),
    }
    for name, model in models.items():
        onnx_models.save(model, folder / "models" / name / "1/model.onnx")
    shutil.copytree(MODELS / "iris", folder / "models/iris")
    with cohort(folder / "models", folder, grpc_port=free_port(), max_body_mb=2) as started:
        yield started


@pytest.fixture
async def client(server: Cohort) -> AsyncIterator[Client]:
    """A connection to it."""
    async with connected(server.grpc) as client:
        yield client


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """An empty models folder."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder
