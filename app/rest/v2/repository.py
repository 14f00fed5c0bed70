"""The model repository extension: what there is, and what an operator wants of it.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from app.auth import Authority
from app.control_plane import ControlPlane, Description
from app.errors import InvalidInput, quoted
from app.rest.admin import operator_only


def repository_router(plane: ControlPlane, *, authority: Authority) -> APIRouter:
    """The routes, answering from `plane`; loading and unloading are the operator's."""
    routes = APIRouter(prefix="/repository")
    guarded = APIRouter(dependencies=[operator_only(authority)])

    @routes.post("/index", summary="Every model and version with its state")
    async def index(request: Request) -> list[Description]:
        """`{"ready": true}` leaves out what would not answer; the body may be empty."""
        only_ready = _body(await request.body()).get("ready", False)
        if not isinstance(only_ready, bool):
            raise InvalidInput("ready is true or false")
        return [one for one in plane.index() if one["state"] == "READY" or not only_ready]

    @guarded.post("/models/{model}/load", summary="Bring a model back, or try it again")
    async def load(request: Request, model: str) -> Response:
        """Answers when the model is served, with the reason where it cannot be."""
        for name in _parameters(_body(await request.body())):
            if name == "config" or name.startswith("file:"):
                raise InvalidInput(
                    f"parameters.{quoted(name)[1:-1]}: a model comes from the repository as it is"
                )
        await plane.load(model)
        return Response(status_code=200)

    @guarded.post("/models/{model}/unload", summary="Take a model out of service")
    async def unload(request: Request, model: str) -> Response:
        """It stays out until it is loaded again; what is in flight finishes."""
        _parameters(_body(await request.body()))
        plane.unload(model)
        return Response(status_code=200)

    routes.include_router(guarded)
    return routes


def _body(body: bytes) -> dict[str, Any]:
    """A JSON object, or nothing at all."""
    if not body.strip():
        return {}
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidInput("the body is a JSON object, or empty")
    return document


def _parameters(document: dict[str, Any]) -> dict[str, Any]:
    parameters = document.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidInput("parameters is a JSON object")
    return parameters
