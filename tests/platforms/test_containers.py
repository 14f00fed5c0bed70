"""Cloud Run and Azure Container Apps give a port, and start the process when a request arrives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from cohort.connections.probe import places_of
from tests.e2e.processes import MODELS, ROOT, free_port
from tests.platforms.starting import platform


def load(file: str) -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load((ROOT / "deploy" / file).read_text())
    return document


def containers() -> dict[str, tuple[dict[str, Any], dict[str, str]]]:
    """The container of each manifest, and its probes' paths."""
    run = load("cloud-run/service.yaml")["spec"]["template"]["spec"]["containers"][0]
    app = load("container-apps/app.yaml")["properties"]["template"]["containers"][0]
    probes = {one["type"]: one["httpGet"]["path"] for one in app["probes"]}
    return {
        "cloud-run": (
            run,
            {
                "Startup": run["startupProbe"]["httpGet"]["path"],
                "Liveness": run["livenessProbe"]["httpGet"]["path"],
            },
        ),
        "container-apps": (app, probes),
    }


@pytest.mark.parametrize("name", ["cloud-run", "container-apps"])
def test_a_new_instance_answers_on_the_port_it_was_given(tmp_path: Path, name: str) -> None:
    """The first request after the start probe is answered, and SIGTERM ends it with status 0."""
    container, probes = containers()[name]
    port = free_port()
    environment = {one["name"]: one["value"] for one in container["env"]}
    environment |= {"PORT": str(port), "COHORT_MODELS": str(MODELS), "COHORT_GRPC_PORT": "0"}
    with platform(port, tmp_path, environment, ready=probes["Startup"]) as server:
        for path in probes.values():
            assert server.get(path).status_code == 200
        body = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
        assert httpx.post(f"{server.url}/models/iris/predict", json=body).json()["outputs"]
        assert server.stop() == 0


def test_probes_and_ingress_ask_at_the_port_of_the_container() -> None:
    """In Cloud Run's manifest and in that of Container Apps."""
    run, _ = containers()["cloud-run"]
    ports = {run["startupProbe"]["httpGet"]["port"], run["livenessProbe"]["httpGet"]["port"]}
    assert ports == {run["ports"][0]["containerPort"]}
    app = load("container-apps/app.yaml")["properties"]
    container = app["template"]["containers"][0]
    asked = {str(one["httpGet"]["port"]) for one in container["probes"]}
    given = next(one["value"] for one in container["env"] if one["name"] == "PORT")
    assert asked == {given} == {str(app["configuration"]["ingress"]["targetPort"])}


def test_the_images_probe_asks_at_the_platforms_port() -> None:
    """COHORT_PORT comes first."""
    assert ("127.0.0.1", 8080) in places_of({"PORT": "8080"})
    assert ("127.0.0.1", 9000) in places_of({"PORT": "8080", "COHORT_PORT": "9000"})
