"""Liveness, readiness and the health summary over HTTP."""

from __future__ import annotations

import pytest

from cohort.scheduling import Fault
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.fakes import make_metrics
from tests.http.clients import client_of
from tests.planes import make_control_plane

READY = {"m": [make_entry(1, ControlledEngine())]}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_ready_process_answers_200(method: str) -> None:
    """GET and HEAD are answered alike, since some load balancers check with HEAD."""
    async with client_of(make_control_plane(make_registry(READY), make_metrics())) as client:
        for path in ("/health", "/health/live", "/health/ready"):
            assert (await client.request(method, path)).status_code == 200
        assert (await client.get("/health/ready")).json() == {"status": "ready"}


@pytest.mark.parametrize("lasting", [False, True])
async def test_a_process_in_trouble_is_not_ready_and_may_be_live(lasting: bool) -> None:
    """Live is 503 only if a restart helps; both have the reason, under both prefixes."""
    fault = Fault("device_lost", "cuda:0 failed", lasting=lasting)
    plane = make_control_plane(make_registry(READY), make_metrics(), faults=lambda: [fault])
    async with client_of(plane) as client:
        for prefix in ("", "/v2"):
            ready = await client.get(f"{prefix}/health/ready")
            assert (ready.status_code, ready.json()["error"]) == (503, "cuda:0 failed")
            live = await client.get(f"{prefix}/health/live")
            assert live.status_code == (503 if lasting else 200)
        assert (await client.get("/health")).json()["reason"] == "cuda:0 failed"


async def test_a_draining_process_is_live_and_not_ready() -> None:
    """Readiness is 503 with the reason; the summary stays 200, for people to read."""
    plane = make_control_plane(make_registry(READY), make_metrics())
    plane.begin_draining()
    async with client_of(plane) as client:
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["code"]) == (503, "NotReady")
        assert ready.json()["error"] == "draining"
        assert int(ready.headers["retry-after"]) >= 1
        assert (await client.get("/health/live")).json() == {"status": "live"}
        assert (await client.get("/health")).json()["status"] == "draining"
