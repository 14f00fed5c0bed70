"""Whether the process is live, and whether it is ready."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from app.control_plane import ControlPlane
from app.errors import NotReady
from app.rest.credentials import visible_to
from app.rest.json_response import json_response

READ = ["GET", "HEAD"]  # some balancers check with HEAD


def health_router(plane: ControlPlane) -> APIRouter:
    """The routes, served from `plane`."""
    routes = APIRouter(tags=["health"])

    @routes.api_route(
        "/health", methods=READ, summary="A summary for people", response_model=dict[str, Any]
    )
    async def health(request: Request) -> Response:
        return json_response(plane.seen_by(visible_to(request.scope)).health())

    @routes.api_route("/health/live", methods=READ, summary="Liveness")
    async def live() -> dict[str, str]:
        return {"status": "live"}

    @routes.api_route("/health/ready", methods=READ, summary="Readiness")
    async def ready(request: Request) -> dict[str, str]:
        """503 while the first models load, while draining, and when a model has gone
        unavailable.
        """
        readiness = plane.seen_by(visible_to(request.scope)).readiness()
        if not readiness.ready:
            raise NotReady(readiness.reason)
        return {"status": "ready"}

    return routes
