"""FastAPI's routes for SageMaker's multi-model endpoints.

https://docs.aws.amazon.com/sagemaker/latest/dg/mms-container-apis.html
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from cohort.auth.authority import Authority
from cohort.codec import parse_json
from cohort.errors import InvalidInput, TooLarge
from cohort.http.admin import operator_only
from cohort.http.calls import respond_to_call
from cohort.http.json_response import json_response
from cohort.http.media import check_json
from cohort.http.methods import Routes
from cohort.http.mlflow.calls import invocation_parser
from cohort.http.predict.calls import predict_route
from cohort.operating import Hosted, MultiModel
from cohort.serving import DataPlane

MAX_BYTES = 64 << 10
"""Limit of the body that names a model."""


def multi_model_router(data: DataPlane, models: MultiModel, *, authority: Authority) -> Routes:
    """Return the routes. If callers need keys, only operators may load and unload."""
    routes = Routes(prefix="/models", tags=["SageMaker"])
    guard = [operator_only(authority)] if authority.asks_callers else []

    @routes.post("", summary="Load a model", response_model=dict[str, Any], dependencies=guard)
    async def load(request: Request) -> Response:
        """The body has `model_name` and `url`, the folder of the model on this machine.

        409 if the name is loaded, 507 if memory is short.
        """
        check_json(request.headers)
        name, address = _read_load(await request.body())
        await models.load(name, address)
        return json_response(_described(await models.find(name)))

    @routes.get("", summary="Loaded models", response_model=dict[str, Any])
    async def show_all(next_page_token: str = "") -> Response:
        """Up to 100 models; `nextPageToken` is the `next_page_token` of the next page."""
        found, token = await models.page(next_page_token)
        page = {"models": list(map(_described, found))}
        return json_response({**page, "nextPageToken": token} if token else page)

    @routes.get("/{model}", summary="One loaded model", response_model=dict[str, Any])
    async def show(model: str) -> Response:
        return json_response(_described(await models.find(model)))

    @routes.delete(
        "/{model}", summary="Unload a model", response_class=Response, dependencies=guard
    )
    async def unload(model: str) -> Response:
        """Requests in flight finish."""
        await models.unload(model)
        return Response()

    @routes.post("/{model}/invoke", summary="Predict", response_model=dict[str, Any])
    async def invoke(request: Request, model: str) -> Response:
        """Like /invocations."""
        route = predict_route(model, query=request.query_params, parser=invocation_parser)
        return await respond_to_call(data, request, route)

    return routes


def _described(model: Hosted) -> dict[str, str]:
    return {"modelName": model.name, "modelUrl": model.address}


def _read_load(body: bytes) -> tuple[str, str]:
    """Return the name and the address in a body. Raises InvalidInput."""
    if len(body) > MAX_BYTES:
        raise TooLarge(f"the body must have at most {MAX_BYTES} bytes")
    document = parse_json(body)
    if not isinstance(document, dict):
        raise InvalidInput("the body must be a JSON object with 'model_name' and 'url'")
    return _text(document, "model_name", "modelName"), _text(document, "url", "modelUrl")


def _text(document: dict[str, Any], *keys: str) -> str:
    value = next((document[key] for key in keys if key in document), None)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InvalidInput(f"'{keys[0]}' must be a text that is not empty")
    return value
