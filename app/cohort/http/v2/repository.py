"""The model repository extension: index, load and unload.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from cohort.auth.authority import Authority
from cohort.codec import parse_json
from cohort.http.admin import operator_only
from cohort.http.credentials import visible_to
from cohort.http.json_response import json_response
from cohort.http.v2.message import json_object, parameters_of
from cohort.open_inference import load_model, repository_index
from cohort.open_inference.parameters import boolean
from cohort.operating import ControlPlane, Description


def repository_router(plane: ControlPlane, *, authority: Authority) -> APIRouter:
    """Return the routes, served from `plane`. Only operators may load and unload."""
    routes = APIRouter(prefix="/v2/repository")
    guard = [operator_only(authority)]

    @routes.post(
        "/index",
        summary="Every model and version with its state",
        response_model=list[Description],
    )
    async def index(request: Request) -> Response:
        """`{"ready": true}` omits versions that are not ready. The body may be empty."""
        only_ready = boolean("ready", _body(await request.body()).get("ready"))
        seen = plane.limited_to(visible_to(request.scope))
        return await asyncio.to_thread(
            lambda: json_response(repository_index(seen, only_ready=only_ready))
        )

    @routes.post(
        "/models/{model}/load", summary="Load a model", response_class=Response, dependencies=guard
    )
    async def load(request: Request, model: str) -> Response:
        """Responds once the model is ready, or with the reason why it is not."""
        parameters = parameters_of("parameters", _body(await request.body()))
        await load_model(plane, model, parameters)
        return Response(status_code=200)

    @routes.post(
        "/models/{model}/unload",
        summary="Unload a model",
        response_class=Response,
        dependencies=guard,
    )
    async def unload(request: Request, model: str) -> Response:
        """The model stays unloaded until it is loaded again. Requests in flight finish."""
        parameters_of("parameters", _body(await request.body()))
        await plane.unload(model)
        return Response(status_code=200)

    return routes


def _body(body: bytes) -> Mapping[str, Any]:
    """Read a JSON object; an empty body is an empty object. Raises InvalidInput."""
    return json_object("the body", parse_json(body)) if body.strip() else {}
