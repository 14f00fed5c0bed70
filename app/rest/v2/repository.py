"""The model repository extension: what there is, and what an operator wants of it.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from app.auth import Authority
from app.control_plane import ControlPlane, Description
from app.open_inference import load_model, repository_index
from app.open_inference.parameters import boolean
from app.rest.admin import operator_only
from app.rest.v2.message import json_object, load_json, parameters_of


def repository_router(plane: ControlPlane, *, authority: Authority) -> APIRouter:
    """The routes, answering from `plane`; loading and unloading are the operator's."""
    routes = APIRouter(prefix="/repository")
    guarded = APIRouter(dependencies=[operator_only(authority)])

    @routes.post("/index", summary="Every model and version with its state")
    async def index(request: Request) -> list[Description]:
        """`{"ready": true}` leaves out what would not answer; the body may be empty."""
        only_ready = boolean("ready", _body(await request.body()).get("ready"))
        return repository_index(plane, only_ready=only_ready)

    @guarded.post("/models/{model}/load", summary="Bring a model back, or try it again")
    async def load(request: Request, model: str) -> Response:
        """Answers when the model is served, with the reason where it cannot be."""
        parameters = parameters_of("parameters", _body(await request.body()))
        await load_model(plane, model, parameters)
        return Response(status_code=200)

    @guarded.post("/models/{model}/unload", summary="Take a model out of service")
    async def unload(request: Request, model: str) -> Response:
        """It stays out until it is loaded again; what is in flight finishes."""
        parameters_of("parameters", _body(await request.body()))
        plane.unload(model)
        return Response(status_code=200)

    routes.include_router(guarded)
    return routes


def _body(body: bytes) -> Mapping[str, Any]:
    """A JSON object, or nothing at all. Raises InvalidInput."""
    return json_object("the body", load_json(body)) if body.strip() else {}
