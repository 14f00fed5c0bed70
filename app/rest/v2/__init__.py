"""The Open Inference Protocol, version 2, over REST, with Triton's extensions.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol
https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

from fastapi import APIRouter

from app.control_plane import ControlPlane
from app.data_plane import DataPlane
from app.rest.v2.infer import match
from app.rest.v2.infer import router as inference
from app.rest.v2.models import router as models
from app.rest.v2.repository import router as repository

__all__ = ["match", "router"]


def router(
    data_plane: DataPlane, control_plane: ControlPlane, *, admin_token: str | None, limit: int
) -> APIRouter:
    """The routes under /v2. `limit` bounds a body's size in bytes when it is unpacked."""
    routes = APIRouter(tags=["v2"])
    routes.include_router(inference(data_plane, limit=limit), prefix="/v2")
    routes.include_router(models(control_plane), prefix="/v2")
    routes.include_router(repository(control_plane, admin_token=admin_token), prefix="/v2")
    return routes
