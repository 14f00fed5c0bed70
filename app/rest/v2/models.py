"""The server and its models: metadata, readiness, settings and statistics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.control_plane import ControlPlane
from app.errors import NotReady
from app.open_inference import (
    model_config,
    model_metadata,
    model_statistics,
    server_metadata,
)
from app.rest.health import READ


def metadata_router(plane: ControlPlane) -> APIRouter:
    """The routes, served from `plane`."""
    routes = APIRouter()

    @routes.get("", summary="The server's name, version and extensions")
    async def server() -> dict[str, Any]:
        return server_metadata()

    @routes.api_route("/health/live", methods=READ, summary="Liveness")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @routes.api_route("/health/ready", methods=READ, summary="Readiness")
    async def ready() -> dict[str, bool]:
        readiness = plane.readiness()
        if not readiness.ready:
            raise NotReady(readiness.reason)
        return {"ready": True}

    # Before the models' own routes: "stats" is not a model there.
    @routes.get("/models/stats", summary="Statistics of all models")
    async def all_statistics() -> dict[str, Any]:
        return {"model_stats": model_statistics(plane)}

    @routes.get("/models/{model}", summary="A model's inputs and outputs")
    async def model(model: str) -> dict[str, Any]:
        return model_metadata(plane, model)

    @routes.get("/models/{model}/versions/{version}", summary="A version's inputs and outputs")
    async def version(model: str, version: str) -> dict[str, Any]:
        return model_metadata(plane, model, version)

    @routes.api_route("/models/{model}/ready", methods=READ, summary="Readiness of a model")
    async def model_ready(model: str) -> dict[str, Any]:
        plane.ready(model)
        return {"name": model, "ready": True}

    @routes.api_route(
        "/models/{model}/versions/{version}/ready", methods=READ, summary="Readiness of a version"
    )
    async def version_ready(model: str, version: str) -> dict[str, Any]:
        plane.ready(model, version)
        return {"name": model, "ready": True}

    @routes.get("/models/{model}/config", summary="A model's settings in Triton's form")
    async def config(model: str) -> dict[str, Any]:
        return model_config(plane, model)

    @routes.get(
        "/models/{model}/versions/{version}/config", summary="A version's settings in Triton's form"
    )
    async def version_config(model: str, version: str) -> dict[str, Any]:
        return model_config(plane, model, version)

    @routes.get("/models/{model}/stats", summary="Statistics of a model's versions")
    async def statistics(model: str) -> dict[str, Any]:
        return {"model_stats": model_statistics(plane, model)}

    @routes.get("/models/{model}/versions/{version}/stats", summary="Statistics of a version")
    async def version_statistics(model: str, version: str) -> dict[str, Any]:
        return {"model_stats": model_statistics(plane, model, version)}

    return routes
