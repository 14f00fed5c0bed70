"""FastAPI's routes for TensorFlow Serving's REST API."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from starlette.convertors import StringConvertor, register_url_convertor

from cohort.http.calls import respond_to_call
from cohort.http.credentials import visible_to
from cohort.http.json_response import json_response
from cohort.http.methods import Routes
from cohort.http.openai.models import model_object
from cohort.http.openapi.schemas import SIGNATURE_NAME
from cohort.http.predict.routes import ErrorBody
from cohort.http.v1.calls import Address, model_status, refuse_verb, signature_metadata, v1_route
from cohort.operating import ControlPlane
from cohort.serving import DataPlane


def address(request: Request) -> Address:
    """Return the address in the path of a request."""
    return Address.of_path(**request.path_params)


class NameConvertor(StringConvertor):
    """A path part without colons. If it had n of them, matching would take n² steps."""

    regex = "[^/:]+"


register_url_convertor("name", NameConvertor())


def v1_router(data: DataPlane, control: ControlPlane) -> Routes:
    """Return the routes. Each exists for a model, a version and a label."""
    routes = Routes(tags=["TensorFlow Serving V1"])

    async def predict(request: Request) -> Response:
        """`instances` (rows) are answered with `predictions`; `inputs` (columns) with `outputs`."""
        return await respond_to_call(
            data, request, v1_route(address(request), request.query_params)
        )

    async def no_verb(request: Request) -> None:
        raise refuse_verb(request.path_params["verb"])

    def show_status(request: Request) -> Response:
        reader = control.limited_to(visible_to(request.scope))
        asked = address(request)
        status = model_status(reader, asked)
        if "name" in status and asked.model in reader.text_models():
            status = {**model_object(asked.model), **status}  # clients ignore the other's keys
        return json_response(status)

    def show_metadata(request: Request) -> Response:
        reader = control.limited_to(visible_to(request.scope))
        return json_response(signature_metadata(reader, address(request)))

    for place in ("", "/versions/{version:name}", "/labels/{label:name}"):
        path = f"/v1/models/{{model:name}}{place}"
        shown = "label" not in place  # labels differ between models, so the document omits them
        routes.post(f"{path}:predict", summary="Predict", include_in_schema=shown, **PREDICT)(
            predict
        )
        routes.post(f"{path}:{{verb:name}}", include_in_schema=False)(no_verb)
        document: dict[str, Any] = {"response_model": dict[str, Any], "include_in_schema": shown}
        routes.get(path, summary="States of versions", **document)(show_status)
        routes.get(f"{path}/metadata", summary="The signature", **document)(show_metadata)
    return routes


PREDICT: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The response",
            "headers": {
                "x-model-version": {
                    "schema": {"type": "string"},
                    "description": "the version that answered",
                },
                "x-variant": {"schema": {"type": "string"}, "description": "the rollout's variant"},
            },
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {"predictions": {}, "outputs": {}, "labels": {}},
                        "minProperties": 1,
                        "maxProperties": 2,
                        "additionalProperties": False,
                    }
                }
            },
        },
        **{status: {"model": ErrorBody} for status in (400, 404, 413, 415, 429, 500, 503, 504)},
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "oneOf": [
                            {
                                "title": title,
                                "type": "object",
                                "properties": {key: values, "signature_name": SIGNATURE_NAME},
                                "required": [key],
                            }
                            for title, key, values in (
                                (
                                    "V1Rows",
                                    "instances",
                                    {"type": "array", "items": {}, "minItems": 1},
                                ),
                                ("V1Columns", "inputs", {}),
                            )
                        ]
                    },
                    "example": {"instances": [{"features": [5.1, 3.5, 1.4, 0.2]}]},
                }
            },
        }
    },
}
