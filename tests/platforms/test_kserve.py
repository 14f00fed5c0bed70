"""KServe: its storage initializer, its clients, and the objects in deploy/kserve."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from ruamel.yaml import YAML

from tests.bundled import model_path
from tests.e2e.processes import MODELS, ROOT, Cohort, free_port
from tests.platforms.starting import platform

HERE = Path(__file__).parent
CLIENTS = ROOT / ".venv-clients/bin/python"
PLATFORMS = ROOT / ".venv-platforms/bin/python"
FILES = sorted((ROOT / "deploy/kserve").glob("*.yaml"))

DOWNLOAD = """
import sys
from kserve_storage import Storage
for given in sys.argv[1:]:
    Storage.download(*given.split(":"))
"""

KINDS = ("file", "model", "versions", "archive", "repository")

needs_storage = pytest.mark.skipif(
    not PLATFORMS.exists(), reason="KServe's storage: make .venv-platforms/platforms.stamp"
)
needs_clients = pytest.mark.skipif(
    not CLIENTS.exists(), reason="KServe's clients: make .venv-clients/clients.stamp"
)


def objects(file: Path) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all(file.read_text()))


def runtime(name: str) -> dict[str, Any]:
    """The container of a runtime in deploy/kserve."""
    file = ROOT / "deploy/kserve/runtime.yaml"
    found = [one for one in objects(file) if one["metadata"]["name"] == name]
    container: dict[str, Any] = found[0]["spec"]["containers"][0]
    return container


def source(folder: Path, kind: str) -> Path:
    """Return the path for a storageUri, in one of the forms that people upload."""
    model = model_path("iris", 1)
    folder.mkdir()
    match kind:
        case "file":
            return Path(shutil.copy(model, folder / "flowers-v3.onnx"))
        case "folder":
            shutil.copy(model, folder / "flowers-v3.onnx")
        case "model":
            (folder / "model").mkdir()
            shutil.copy(model, folder / "model/model.onnx")
        case "versions":
            (folder / "7").mkdir()
            shutil.copy(model, folder / "7/model.onnx")
        case "archive":
            shutil.copy(model, folder / "flowers-v3.onnx")
            shutil.make_archive(str(folder / "../iris"), "zip", folder)
            return folder / "../iris.zip"
        case _:
            shutil.copytree(MODELS, folder, dirs_exist_ok=True)
    return folder


def play(name: str, mounted: Path, folder: Path, model: str) -> Iterator[Cohort]:
    """Run a runtime's container, with its arguments and environment, as KServe fills them in."""
    container = runtime(name)
    arguments = [
        one.replace("{{.Name}}", model).replace("/mnt/models", str(mounted))
        for one in container["args"]
    ]
    port, grpc = free_port(), free_port()
    environment = {one["name"]: one["value"] for one in container["env"]}
    environment |= {
        "COHORT_PORT": str(port),
        "COHORT_GRPC_PORT": str(grpc),
        "COHORT_STATE": str(folder / "state"),
        "COHORT_CACHE": str(folder / "cache"),
    }
    ready = runtime("cohort")["readinessProbe"]["httpGet"]["path"]
    with platform(port, folder, environment, *arguments[1:], ready=ready) as server:
        server.grpc = f"127.0.0.1:{grpc}"
        yield server


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that KServe's storage initializer made, one for each kind of source."""
    folder = tmp_path_factory.mktemp("storage")
    given = [f"{source(folder / f'from-{kind}', kind)}:{folder / kind}" for kind in KINDS]
    subprocess.run([str(PLATFORMS), "-c", DOWNLOAD, *given], check=True, capture_output=True)
    return folder


@needs_storage
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_storage_initializer_lays_out_is_served_as_it_is(
    laid_out: Path, tmp_path: Path, kind: str
) -> None:
    """Under the service's name, which the runtime passes as --model_name."""
    for server in play("cohort", laid_out / kind, tmp_path, "iris"):
        answer = server.get("/v1/models/iris")
        assert answer.json()["ready"], server.logged
        versions = answer.json()["model_version_status"]
        assert [one["version"] for one in versions] == ["7" if kind == "versions" else "1"]
        rows = {"instances": [[5.1, 3.5, 1.4, 0.2]]}
        answer = httpx.post(f"{server.url}/invocations", json=rows)  # it is the default model
        assert answer.json()["predictions"][0]["label"] == 0


@needs_clients
def test_its_clients_find_the_model_under_the_name_of_the_service(tmp_path: Path) -> None:
    """V1, whose readiness check is the model's own, V2 and gRPC get the same answer."""
    mounted = source(tmp_path / "mnt", "folder")
    for server in play("cohort-grpc", mounted, tmp_path, "flowers"):
        command = [str(CLIENTS), str(HERE / "kserve_calls.py"), server.url, server.grpc, "flowers"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == {
            "v1 live": True,
            "v1 ready": True,
            "v1": 0,
            "v2 ready": True,
            "v2": [0],
            "grpc ready": True,
            "grpc": [0],
        }


def test_objects_have_what_the_resource_definitions_require() -> None:
    """And no other fields."""
    schemas = json.loads((HERE / "kserve_crds.json").read_text())
    seen = set()
    for file in FILES:
        for one in objects(file):
            jsonschema_rs.validator_for(schemas[one["kind"]]).validate(one)
            seen.add(one["kind"])
    assert seen == {"ServingRuntime", "InferenceService"}


@needs_clients
def test_fields_of_pods_have_the_types_of_the_sdk() -> None:
    """Down to the probes and the security context."""
    command = [str(CLIENTS), str(HERE / "kserve_files.py"), *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_services_name_runtimes_that_speak_their_protocol() -> None:
    """For the format that the runtime supports."""
    every = [one for file in FILES for one in objects(file)]
    runtimes = {
        one["metadata"]["name"]: one["spec"] for one in every if one["kind"] == "ServingRuntime"
    }
    for one in every:
        if one["kind"] == "InferenceService":
            model = one["spec"]["predictor"]["model"]
            runs = runtimes[model["runtime"]]
            assert model["protocolVersion"] in runs["protocolVersions"]
            formats = [supported["name"] for supported in runs["supportedModelFormats"]]
            assert model["modelFormat"]["name"] in formats
