"""One server for everything that is asked over both wires."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.rpc.client import Client, connected
from tests.waiting import PATIENCE

TOKEN = "open-sesame"

IDENTITIES = {
    f"same_{datatype.lower()}": datatype
    for datatype in ("BOOL", "INT8", "INT64", "UINT64", "FP16", "BYTES", "FP8E4M3FN")
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A model of each kind that the protocol has a rule for."""
    folder = tmp_path_factory.mktemp("open_inference")
    models = folder / "models"
    labels = {"classes": json.dumps(["low", "middle", "high"])}
    for name, model in {
        "same": onnx_models.identity(),
        **{name: onnx_models.identity(datatype) for name, datatype in IDENTITIES.items()},
        "gather": onnx_models.gather(),
        "labelled": onnx_models.describe(onnx_models.identity(), labels),
        "no_inputs": onnx_models.no_inputs(),
        "pair": onnx_models.two_inputs(),
        "rank": onnx_models.unknown_rank(),
        "scalar": onnx_models.scalar(),
        "sequence": onnx_models.sequence(),
        "slow": onnx_models.slow(nodes=2000),
    }.items():
        onnx_models.save(model, models / name / "1/model.onnx")
    (models / "broken/1").mkdir(parents=True)
    (models / "broken/1/model.onnx").write_bytes(b"broken")
    shutil.copytree(MODELS / "digits", models / "digits")
    (models / "digits/config.yaml").write_text("versions: all\n")
    with cohort(models, folder, admin_token=TOKEN, grpc_port=free_port()) as started:
        yield started


@pytest.fixture
async def grpc_client(server: Cohort) -> AsyncIterator[Client]:
    """A connection for gRPC."""
    async with connected(server.grpc) as client:
        yield client


@pytest.fixture
async def rest_client(server: Cohort) -> AsyncIterator[httpx.AsyncClient]:
    """A connection for REST."""
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        yield client
