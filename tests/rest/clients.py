"""HTTP clients of routes that run in the test's own process."""

from __future__ import annotations

import httpx
from fastapi import FastAPI

from app.auth import Authority
from app.callers import KeyRing
from app.control_plane import ControlPlane
from app.rest.error_handlers import install_error_handlers
from app.rest.health import health_router
from app.rest.models import models_router
from app.rest.v2.models import metadata_router


def client_of(plane: ControlPlane) -> httpx.AsyncClient:
    """A client of the routes about health and models."""
    app = FastAPI()
    app.include_router(health_router(plane))
    app.include_router(metadata_router(plane), prefix="/v2")
    app.include_router(models_router(plane, authority=Authority(KeyRing())))
    install_error_handlers(app)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://cohort")
