"""The simple face: `POST /predict`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.codec import (
    PredictRequest,
    decode_inputs,
    encode_prediction,
    encode_simple,
    parse_predict,
)
from app.data_plane import DataPlane, Lease, Outputs
from app.errors import Cancelled, CohortError, InvalidInput, UnsupportedMedia, quoted
from app.tensors import Arrays

T = TypeVar("T")

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


@dataclass(slots=True)
class Prediction:
    """One call of the simple face from body to body, whoever carries the bytes."""

    request: PredictRequest
    lease: Lease
    arrays: Arrays
    positions: list[int]

    def encode(self, outputs: Outputs) -> bytes:
        """Write the answer. Raises where an output cannot be written in JSON."""
        request, lease = self.request, self.lease
        specs = lease.outputs
        write = encode_simple if request.single else encode_prediction
        return write(
            model=lease.model,
            version=lease.version,
            variant=lease.variant or None,
            id=request.id,
            outputs={specs[position].name: outputs[position] for position in self.positions},
            inference_time=lease.seconds,
        )


def begin(plane: DataPlane, model: str | None, version: str | None, body: bytes) -> Prediction:
    """Parse a body, choose who answers, decode its inputs. Nothing stays open where it raises.

    `model` and `version` are the path's; the body's say the same or nothing.
    """
    try:
        request = parse_predict(body)
        wanted_model = _same("model", model, request.model)
        wanted_version = _same("version", version, request.version)
    except CohortError as error:
        plane.refused(model, error)
        raise
    lease = plane.pick(wanted_model, wanted_version)
    try:
        positions = lease.select(request.outputs)
        return Prediction(request, lease, decode_inputs(request, lease.inputs), positions)
    except BaseException as error:
        lease.close(error)
        raise


def _same(what: str, path: str | None, body: str | None) -> str | None:
    if path is not None and body is not None and path != body:
        raise InvalidInput(f"the path asks for {what} {quoted(path)}, the body for {quoted(body)}")
    return body if path is None else path


async def answer(
    plane: DataPlane, request: Request, model: str | None, version: str | None
) -> Response:
    """Answer one request of the simple face."""
    check_media(request.headers)
    prediction = begin(plane, model, version, await request.body())
    with prediction.lease as lease:
        work = lease.infer(prediction.arrays, timeout=prediction.request.timeout)
        outputs = await unless_gone(request, work)
        body = prediction.encode(outputs)
    return Response(body, media_type="application/json")


def check_media(headers: Mapping[str, str]) -> None:
    """Raise UnsupportedMedia for a body that is surely no JSON."""
    if headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("this route takes no content-encoding")
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in READABLE and not media.endswith("+json"):
        raise UnsupportedMedia(f"this route takes application/json, not {quoted(media)}")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Await `work`, and drop it when the caller hangs up first."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("the caller left")
        return await working
    finally:
        working.cancel()
        gone.cancel()


def router(plane: DataPlane) -> APIRouter:
    """The routes, answering from `plane`."""
    routes = APIRouter(tags=["predict"])
    document: dict[str, Any] = {
        "responses": {
            200: {"model": PredictAnswer},
            **{status: {"model": ErrorBody} for status in (400, 404, 413, 415, 429, 500, 503, 504)},
        },
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": PredictBody.model_json_schema()}},
            }
        },
    }

    @routes.post("/predict", summary="Ask a model", **document)
    async def predict(request: Request) -> Response:
        """The model is named in the body, or left out where there is one, or a default."""
        return await answer(plane, request, None, None)

    @routes.post("/models/{model}/predict", summary="Ask this model", **document)
    async def predict_model(request: Request, model: str) -> Response:
        """The highest ready version answers, or whom a rollout chooses."""
        return await answer(plane, request, model, None)

    @routes.post(
        "/models/{model}/versions/{version}/predict", summary="Ask this version", **document
    )
    async def predict_version(request: Request, model: str, version: str) -> Response:
        """A pinned version bypasses any rollout."""
        return await answer(plane, request, model, version)

    return routes


class PredictBody(BaseModel):
    """What is asked. Either `inputs` by name, or `input` for a model that has only one."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}]
        }
    )

    model: str | None = Field(None, description="may be left out where there is one, or a default")
    version: str | None = Field(None, description="pins a version")
    inputs: dict[str, Any] | None = Field(None, description="arrays by input name, rows first")
    input: Any = Field(None, description="the only input's array, as tutorials write it")
    outputs: list[str] | None = Field(None, description="which outputs to answer with")
    id: str | None = Field(None, description="given back in the answer")
    timeout_ms: float | None = Field(None, description="give up after this long", gt=0)
    parameters: dict[str, str | int | float | bool] | None = None


class PredictAnswer(BaseModel):
    """What comes back to `inputs`; to `input`, `prediction` takes the place of `outputs`."""

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
