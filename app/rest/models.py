"""What is loaded: states, descriptions and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from app.control_plane import ControlPlane


def models_router(plane: ControlPlane) -> APIRouter:
    """The routes, served from `plane`."""
    routes = APIRouter(tags=["models"])

    @routes.get("/models", summary="Every model and its versions' states")
    async def models() -> dict[str, Any]:
        return plane.models()

    @routes.get("/models/{model}", summary="One model in full")
    async def model(model: str) -> dict[str, Any]:
        return plane.model(model)

    @routes.get("/models/{model}/versions/{version}", summary="One version in full")
    async def version(model: str, version: str) -> dict[str, Any]:
        return plane.version(model, version)

    @routes.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        body, content_type = plane.metrics_text(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return routes
