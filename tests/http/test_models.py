"""Descriptions of models and versions, and metrics, over HTTP."""

from __future__ import annotations

import httpx
import pytest

from tests.engines import ControlledEngine, make_entry, make_registry
from tests.fakes import make_metrics
from tests.http.clients import client_of
from tests.planes import make_control_plane

MODELS = {"m": [make_entry(1, ControlledEngine()), make_entry(2, reason="no such operator")]}


def client() -> httpx.AsyncClient:
    """A client of a server with these models."""
    return client_of(make_control_plane(make_registry(MODELS), make_metrics()))


async def test_the_list_has_states_and_a_model_has_its_versions_in_full() -> None:
    """Inputs are described only for one model or one version."""
    async with client() as http:
        (listed,) = (await http.get("/models")).json()["models"]
        assert listed["default_version"] == "1"
        assert [(one["version"], one["state"], one["reason"]) for one in listed["versions"]] == [
            ("1", "READY", ""),
            ("2", "UNAVAILABLE", "no such operator"),
        ]
        assert "inputs" not in listed["versions"][0]
        model = (await http.get("/models/m")).json()
        assert model["versions"][0]["inputs"][0]["transportable"]
        version = (await http.get("/models/m/versions/1")).json()
        assert version == {"model": "m", **model["versions"][0]}


@pytest.mark.parametrize(
    ("path", "code"),
    [("/models/x", "ModelNotFound"), ("/models/m/versions/9", "VersionNotFound")],
)
async def test_an_unknown_model_or_version_is_404(path: str, code: str) -> None:
    """Each has its own code."""
    async with client() as http:
        response = await http.get(path)
        assert (response.status_code, response.json()["code"]) == (404, code)


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
async def test_metrics_have_the_content_type_that_was_asked_for(accept: str) -> None:
    """Prometheus asks for OpenMetrics, a browser for text."""
    async with client() as http:
        response = await http.get("/metrics", headers={"accept": accept})
        assert response.headers["content-type"].startswith(accept)
        assert "model_state" in response.text


@pytest.mark.parametrize("accept", ["gzip", "gzip;q=0", "identity", "*", "br"])
async def test_metrics_are_packed_for_who_takes_that(accept: str) -> None:
    """Prometheus does, by its defaults; the text is the same."""
    async with client() as http:
        response = await http.get("/metrics", headers={"accept-encoding": accept})
        coded = response.headers.get("content-encoding")
        assert coded == ("gzip" if accept in {"gzip", "*"} else None)
        assert "content-length" in response.headers or coded
        assert response.text.count("# TYPE") > 5
