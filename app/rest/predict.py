"""The simple API: `POST /predict`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.codec import (
    PredictRequest,
    are_large,
    decode_inputs,
    encode_prediction,
    encode_simple,
)
from app.data_plane import DataPlane, Lease, Outputs
from app.errors import InvalidInput, UnsupportedMedia, quoted
from app.rest.calls import JSON, Encoded, Headers, Read, Route, respond_to_call
from app.tensors import Arrays

READABLE = frozenset(
    {
        "application/json",
        "application/octet-stream",
        "application/x-www-form-urlencoded",  # what `curl -d` says unless told otherwise
        "text/json",
        "text/plain",
        "",
    }
)


class PredictCall(PredictRequest):
    """One call of the simple API. What the path says counts, and the body says the same."""

    label: str | None = None
    _positions: Sequence[int] = ()

    def decode_work(self, lease: Lease) -> int:
        """None: what is not parsed on the codec thread is short."""
        return 0

    def is_large(self, outputs: Outputs) -> bool:
        """Whether writing the response takes long."""
        return are_large(outputs)

    def decode(self, lease: Lease) -> Arrays:
        """Make arrays as the version wants them. Raises InvalidInput."""
        self._positions = lease.select(self.outputs)
        return decode_inputs(self, lease.served.inputs)

    def encode(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the response. Raises where an output cannot be written in JSON."""
        served = lease.served
        specs = served.outputs
        write = encode_simple if self.single else encode_prediction
        body = write(
            model=served.model,
            version=served.version,
            variant=lease.variant or None,
            id=self.id,
            outputs={specs[position].name: outputs[position] for position in self._positions},
            inference_time=lease.seconds,
        )
        return Encoded(body, JSON)


def predict_route(model: str | None = None, version: str | None = None) -> Route:
    """How bodies are read at the path of `model` and `version`, or at /predict."""

    def read(body: bytes) -> PredictCall:
        return at_path(PredictCall.parse(body))

    def from_document(document: object, body: bytes) -> PredictCall:
        return at_path(PredictCall.from_document(document, body))

    def at_path(call: PredictCall) -> PredictCall:
        if model is not None:
            call.model = _same("model", model, call.model)
        if version is not None:
            call.version = _same("version", version, call.version)
        return call

    def reader(headers: Headers) -> Read:
        check_media(headers)
        return read

    return Route(model, reader, from_document if version is None else None, version)


def match_predict(path: str) -> Route | None:
    """The route of a path of the simple API, written plainly; None for any other."""
    if path == "/predict":
        return predict_route()
    found = PREDICT_PATH.fullmatch(path)
    return predict_route(found["model"], found["version"]) if found else None


PREDICT_PATH = re.compile(
    r"/models/(?P<model>[\w.-]+)(/versions/(?P<version>\w+))?/predict", re.ASCII
)


def _same(what: str, path: str, body: str | None) -> str:
    if body is not None and path != body:
        raise InvalidInput(
            f"the path names {what} {quoted(path)} but the body names {quoted(body)}"
        )
    return path


def check_media(headers: Headers) -> None:
    """Raise UnsupportedMedia for a body that is certainly not JSON."""
    if (headers.get("content-encoding") or "identity") != "identity":
        raise UnsupportedMedia("this route takes no content-encoding")
    sent = headers.get("content-type") or ""
    if sent in READABLE:
        return
    media = sent.partition(";")[0].strip().lower()
    if media not in READABLE and not media.endswith("+json"):
        raise UnsupportedMedia(f"this route takes application/json, not {quoted(media)}")


def predict_router(plane: DataPlane) -> APIRouter:
    """The routes, served from `plane`."""
    routes = APIRouter(tags=["predict"])
    document: dict[str, Any] = {
        "responses": {
            200: {"model": PredictResponseBody},
            **{status: {"model": ErrorBody} for status in (400, 404, 413, 415, 429, 500, 503, 504)},
        },
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": PredictBody.model_json_schema()}},
            }
        },
    }

    @routes.post("/predict", summary="Predict", **document)
    async def predict(request: Request) -> Response:
        """The model is named in the body, or left out where there is one, or a default."""
        return await respond_to_call(plane, request, predict_route())

    @routes.post("/models/{model}/predict", summary="Predict with a model", **document)
    async def predict_model(request: Request, model: str) -> Response:
        """The highest ready version answers, or the one that a rollout chooses."""
        return await respond_to_call(plane, request, predict_route(model))

    @routes.post(
        "/models/{model}/versions/{version}/predict", summary="Predict with a version", **document
    )
    async def predict_version(request: Request, model: str, version: str) -> Response:
        """A pinned version bypasses any rollout."""
        return await respond_to_call(plane, request, predict_route(model, version))

    return routes


class PredictBody(BaseModel):
    """A request. Either `inputs` by name, or `input` for a model that has only one."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}]
        }
    )

    model: str | None = Field(None, description="may be left out if there is one, or a default")
    version: str | None = Field(None, description="pins a version")
    inputs: dict[str, Any] | None = Field(None, description="arrays by input name, rows first")
    input: Any = Field(None, description="the only input's array, as tutorials write it")
    outputs: list[str] | None = Field(None, description="which outputs to return")
    id: str | None = Field(None, description="returned with the response")
    timeout_ms: float | None = Field(None, description="give up after this long", gt=0)
    parameters: dict[str, str | int | float | bool] | None = None


class PredictResponseBody(BaseModel):
    """A response to `inputs`; to `input`, `prediction` replaces `outputs`."""

    model: str
    version: str
    variant: str | None = None
    id: str | None = None
    outputs: dict[str, Any] | None = None
    prediction: Any = None
    inference_time_ms: float


class ErrorBody(BaseModel):
    """Every error, on every route."""

    error: str
    code: str
