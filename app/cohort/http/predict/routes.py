"""FastAPI's routes for the simple API, and the schemas of their bodies for /docs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from cohort.http.calls import respond_to_call
from cohort.http.predict.calls import predict_route
from cohort.serving import DataPlane


def predict_router(plane: DataPlane) -> APIRouter:
    """Return the routes, served from `plane`."""
    routes = APIRouter(tags=["predict"])
    document: dict[str, Any] = {
        "responses": {200: {"model": PredictResponseBody}, **ERRORS},
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": PredictBody.model_json_schema()}},
            }
        },
    }

    @routes.post("/predict", summary="Predict", **document)
    async def predict(request: Request) -> Response:
        """Name the model in the body. Omit it if there is only one model or a default."""
        return await respond_to_call(plane, request, predict_route(query=request.query_params))

    @routes.post("/models/{model}/predict", summary="Predict with a model", **document)
    async def predict_model(request: Request, model: str) -> Response:
        """The highest ready version answers, or the version that a rollout chooses."""
        return await respond_to_call(
            plane, request, predict_route(model, query=request.query_params)
        )

    @routes.post(
        "/models/{model}/versions/{version}/predict", summary="Predict with a version", **document
    )
    async def predict_version(request: Request, model: str, version: str) -> Response:
        """A pinned version bypasses any rollout."""
        return await respond_to_call(
            plane, request, predict_route(model, version, request.query_params)
        )

    return routes


class PredictBody(BaseModel):
    """A request: `inputs` by name, `input` for a model with one input, or `rows`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}]
        }
    )

    model: str | None = Field(None, description="may be omitted if there is one model or a default")
    version: str | None = Field(None, description="pins a version")
    inputs: dict[str, Any] | None = Field(None, description="arrays by input name, rows first")
    input: Any = Field(None, description="the array of the model's only input")
    rows: list[dict[str, Any]] | None = Field(
        None, description="a table: rows with a value for each column, null for a missing one"
    )
    outputs: list[str] | None = Field(None, description="which outputs to return")
    id: str | None = Field(None, description="returned with the response")
    timeout_ms: float | None = Field(None, description="time limit in milliseconds", gt=0)
    parameters: dict[str, str | int | float | bool] | None = None


class PredictResponseBody(BaseModel):
    """A response to `inputs`. A response to `input` has `prediction` instead of `outputs`."""

    model: str
    version: str
    variant: str | None = None
    id: str | None = None
    outputs: dict[str, Any] | None = None
    prediction: Any = None
    labels: Any = Field(
        None,
        description="the best classes of each row as {label, score} if the model has labels "
        "and its config or `top` requests them",
    )
    inference_time_ms: float


class ErrorBody(BaseModel):
    """The body of every error on every route."""

    error: str
    code: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 415, 429, 500, 503, 504)
}
