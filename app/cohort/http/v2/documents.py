"""Schemas of the protocol's bodies, for /docs."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from cohort.http.predict.routes import ErrorBody


class InferInputBody(BaseModel):
    """An input. Its `data` is flat or nested, or absent if binary data follows the JSON."""

    name: str
    datatype: str = Field(description="the model's datatype: FP32, INT64, BYTES …")
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = Field(None, description="binary_data_size")


class RequestedOutputBody(BaseModel):
    """A requested output."""

    name: str
    parameters: dict[str, Any] | None = Field(None, description="binary_data, classification")


class InferBody(BaseModel):
    """An inference request."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "a1",
                    "inputs": [
                        {
                            "name": "features",
                            "datatype": "FP32",
                            "shape": [1, 4],
                            "data": [5.1, 3.5, 1.4, 0.2],
                        }
                    ],
                    "outputs": [{"name": "label"}],
                }
            ]
        }
    )

    id: str | int | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="timeout (microseconds), binary_data_output"
    )
    inputs: list[InferInputBody]
    outputs: list[RequestedOutputBody] | None = Field(None, description="all if omitted or empty")


class InferOutputTensor(BaseModel):
    """An output. Its `data` is flat, or follows the JSON as `binary_data_size` bytes."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class InferResponseBody(BaseModel):
    """The response to an inference."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="variant, if there is a rollout")
    outputs: list[InferOutputTensor]


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """Replace references by their parts. FastAPI does not collect them for this body."""
    if isinstance(schema, list):
        return [_inlined(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {key: _inlined(value, parts) for key, value in schema.items() if key != "$defs"}


def _body() -> dict[str, Any]:
    schema = InferBody.model_json_schema()
    return dict(_inlined(schema, schema["$defs"]))


INFER: dict[str, Any] = {
    "responses": {
        200: {"model": InferResponseBody},
        **{status: {"model": ErrorBody} for status in (400, 404, 413, 415, 429, 500, 503, 504)},
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _body()}},
        }
    },
}


class GenerateBody(BaseModel):
    """A request to a language model. Sampling parameters may also be next to `parameters`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"text_input": "Once upon a time", "parameters": {"max_tokens": 16}}]
        }
    )

    id: str | int | None = None
    text_input: str
    parameters: dict[str, Any] | None = Field(
        None,
        description="max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, "
        "presence_penalty, frequency_penalty, seed, stop, logit_bias, details, "
        "exclude_input_in_output, timeout (microseconds)",
    )


class GenerateResponseBody(BaseModel):
    """The answer of a language model."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="variant, if there is a rollout")
    text_output: str
    details: dict[str, Any] | None = Field(None, description="finish_reason and logprobs")


_GENERATE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": GenerateBody.model_json_schema()}},
    }
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 415, 429, 500, 503, 504)
}

GENERATE: dict[str, Any] = {
    "responses": {200: {"model": GenerateResponseBody}, **_ERRORS},
    "openapi_extra": _GENERATE_BODY,
}

GENERATE_STREAM: dict[str, Any] = {
    "response_class": Response,
    "responses": {
        200: {
            "description": "events, each with new text; the last one has `done`",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **_ERRORS,
    },
    "openapi_extra": _GENERATE_BODY,
}
