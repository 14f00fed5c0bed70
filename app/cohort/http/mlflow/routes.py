"""FastAPI's routes for MLflow and SageMaker clients."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from cohort.http.calls import respond_to_call
from cohort.http.credentials import visible_to
from cohort.http.methods import Routes
from cohort.http.mlflow.calls import KEYS, invocation_parser
from cohort.http.predict.calls import predict_route
from cohort.http.predict.routes import ERRORS
from cohort.operating import ControlPlane
from cohort.serving import DataPlane


def invocations_router(data: DataPlane, control: ControlPlane) -> Routes:
    """Return the routes, served from the planes."""
    routes = Routes(tags=["MLflow and SageMaker"])

    @routes.post(
        "/invocations",
        summary="Predict, in the form of MLflow and SageMaker",
        responses={200: {"description": "The response", "content": PREDICTIONS}, **ERRORS},
        openapi_extra={"requestBody": {"required": True, "content": BODY}},
    )
    async def invoke(request: Request) -> Response:
        """Uses the only model, the default model, or `?model=`.

        Also accepts CSV as `Content-Type: text/csv`, and the files that /predict accepts.
        """
        route = predict_route(query=request.query_params, parser=invocation_parser)
        return await respond_to_call(data, request, route)

    @routes.get("/ping", summary="Readiness for SageMaker")
    async def ping(request: Request) -> dict[str, str]:
        """Like /health/ready."""
        control.readiness(control.limited_to(visible_to(request.scope))).check()
        return {"status": "ready"}

    return routes


PREDICTIONS: dict[str, Any] = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {"predictions": {}},
            "required": ["predictions"],
            "additionalProperties": False,
        }
    }
}
BODY: dict[str, Any] = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {
                "dataframe_split": {
                    "type": "object",
                    "properties": {
                        "columns": {"type": "array", "items": {"type": "string"}},
                        "data": {"type": "array", "items": {"type": "array"}, "minItems": 1},
                    },
                    "required": ["data"],
                },
                "dataframe_records": {
                    "type": "array",
                    "items": {"type": "object"},
                    "minItems": 1,
                },
                "inputs": {},
                "instances": {"type": "array", "minItems": 1},
                "params": {"type": "object"},
            },
            "oneOf": [{"required": [key]} for key in KEYS],
        },
    },
}
