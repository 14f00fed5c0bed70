"""HTTP clients of routes that run in the test's own process."""

from __future__ import annotations

import httpx
from fastapi import FastAPI

from cohort.auth import KeyRing
from cohort.auth.authority import Authority
from cohort.http.error_handlers import install_error_handlers
from cohort.http.health import health_router
from cohort.http.models import models_router
from cohort.http.v2.models import metadata_router
from cohort.operating import ControlPlane


def client_of(plane: ControlPlane) -> httpx.AsyncClient:
    """A client of the routes about health and models."""
    app = FastAPI()
    app.include_router(health_router(plane))
    app.include_router(metadata_router(plane))
    app.include_router(models_router(plane, authority=Authority(KeyRing())))
    install_error_handlers(app)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://cohort")
