"""Metadata, readiness, settings and statistics of the server and its models."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from cohort.http.credentials import visible_to
from cohort.http.json_response import json_response
from cohort.http.methods import Routes
from cohort.open_inference import model_config, model_metadata, model_statistics, server_metadata
from cohort.operating import ControlPlane, ModelReader

DOCUMENT = dict[str, Any]
"""Response model of routes that write their own documents on a thread, because these may be long.
"""


def metadata_router(plane: ControlPlane) -> Routes:
    """Return the routes, served from `plane`."""
    routes = Routes(prefix="/v2")

    def reader(request: Request) -> ModelReader:
        return plane.limited_to(visible_to(request.scope))

    @routes.get("", summary="The server's name, version and extensions")
    async def server() -> dict[str, Any]:
        return server_metadata()

    @routes.get("/health/live", summary="Liveness")
    async def live() -> dict[str, bool]:
        plane.liveness().check()
        return {"live": True}

    @routes.get("/health/ready", summary="Readiness")
    async def ready(request: Request) -> dict[str, bool]:
        plane.readiness(reader(request)).check()
        return {"ready": True}

    # Before the routes of models, so that "stats" is not read as a model's name.
    @routes.get("/models/stats", summary="Statistics of all models", response_model=dict[str, Any])
    def all_statistics(request: Request) -> Response:
        return json_response({"model_stats": model_statistics(reader(request))})

    @routes.get("/models/{model}", summary="A model's inputs and outputs", response_model=DOCUMENT)
    def model(request: Request, model: str) -> Response:
        return json_response(model_metadata(reader(request), model))

    @routes.get(
        "/models/{model}/versions/{version}",
        summary="A version's inputs and outputs",
        response_model=DOCUMENT,
    )
    def version(request: Request, model: str, version: str) -> Response:
        return json_response(model_metadata(reader(request), model, version))

    @routes.get("/models/{model}/ready", summary="Readiness of a model")
    async def model_ready(request: Request, model: str) -> dict[str, Any]:
        reader(request).ready(model)
        return {"name": model, "ready": True}

    @routes.get("/models/{model}/versions/{version}/ready", summary="Readiness of a version")
    async def version_ready(request: Request, model: str, version: str) -> dict[str, Any]:
        reader(request).ready(model, version)
        return {"name": model, "ready": True}

    @routes.get(
        "/models/{model}/config",
        summary="A model's settings in Triton's form",
        response_model=DOCUMENT,
    )
    def config(request: Request, model: str) -> Response:
        return json_response(model_config(reader(request), model))

    @routes.get(
        "/models/{model}/versions/{version}/config",
        summary="A version's settings in Triton's form",
        response_model=DOCUMENT,
    )
    def version_config(request: Request, model: str, version: str) -> Response:
        return json_response(model_config(reader(request), model, version))

    @routes.get(
        "/models/{model}/stats", summary="Statistics of a model's versions", response_model=DOCUMENT
    )
    def statistics(request: Request, model: str) -> Response:
        return json_response({"model_stats": model_statistics(reader(request), model)})

    @routes.get(
        "/models/{model}/versions/{version}/stats",
        summary="Statistics of a version",
        response_model=DOCUMENT,
    )
    def version_statistics(request: Request, model: str, version: str) -> Response:
        return json_response({"model_stats": model_statistics(reader(request), model, version)})

    return routes
