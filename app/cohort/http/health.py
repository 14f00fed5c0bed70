"""Liveness and readiness of the process."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from cohort.http.credentials import visible_to
from cohort.http.json_response import json_response
from cohort.http.methods import Routes
from cohort.operating import ControlPlane


def health_router(plane: ControlPlane, *, ready_path: str = "") -> Routes:
    """Return the routes, served from `plane`.

    ready_path: Another path for readiness; default: none.
    """
    routes = Routes(tags=["health"])

    if ready_path:  # before the others, which it may replace

        @routes.get(ready_path, include_in_schema=False)
        async def ready_too(request: Request) -> dict[str, str]:
            return await ready(request)

    @routes.get("/health", summary="A summary for people", response_model=dict[str, Any])
    async def health(request: Request) -> Response:
        view = plane.limited_to(visible_to(request.scope))
        return json_response(await plane.health(view))

    @routes.get("/health/live", summary="Liveness")
    async def live() -> dict[str, str]:
        """503 after a fault that only a restart fixes.

        A blocked event loop cannot answer; the probe's own timeout detects that.
        """
        plane.liveness().check()
        return {"status": "live"}

    @routes.get("/health/ready", summary="Readiness")
    async def ready(request: Request) -> dict[str, str]:
        """503 while the first models load, the server drains, or a model is unavailable.

        Also 503 while a device, a run or the event loop is stuck.
        """
        plane.readiness(plane.limited_to(visible_to(request.scope))).check()
        return {"status": "ready"}

    return routes
