"""FastAPI's routes for `POST /v2/models/{model}/infer`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from cohort.http.calls import respond_to_call
from cohort.http.v2.documents import INFER
from cohort.http.v2.infer import infer_route
from cohort.open_inference import Regions
from cohort.serving import DataPlane


def infer_router(plane: DataPlane, regions: Regions) -> APIRouter:
    """Return the routes, served from `plane` with the registered shared memory."""
    routes = APIRouter(prefix="/v2")

    @routes.post("/models/{model}/infer", summary="Infer", **INFER)
    async def infer(request: Request, model: str) -> Response:
        return await respond_to_call(plane, request, infer_route(model, None, regions))

    @routes.post(
        "/models/{model}/versions/{version}/infer", summary="Infer, with a version", **INFER
    )
    async def infer_version(request: Request, model: str, version: str) -> Response:
        """A pinned version bypasses any rollout."""
        return await respond_to_call(plane, request, infer_route(model, version, regions))

    return routes
