"""The general part of the document: everything except the paths of single models."""

from __future__ import annotations

import re
import warnings
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts

from cohort.http.errors import HTTP_STATUS
from cohort.http.guards.callers import OPEN_PATHS
from cohort.http.openai.error_body import PATHS as OPENAI_PATHS
from cohort.http.openapi.examples import are_shortened, predict_examples, v1_examples, v2_examples
from cohort.http.openapi.model_paths import (
    INFERENCE_ERRORS,
    error_components,
    error_responses,
    takes_binary,
)
from cohort.http.openapi.schemas import Schema
from cohort.operating import ServedModel

ERROR: Schema = {
    "title": "Error",
    "description": "The body of every error on every route.",
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "a sentence"},
        "code": {"type": "string", "description": "the error's name, as in the metrics"},
    },
    "required": ["error", "code"],
}

OPENAI = "OpenAI"

OPENAI_ERROR: Schema = {
    "title": "OpenAIError",
    "description": "The body of every error on OpenAI's routes.",
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}

COMMON: Schema = {
    "ParameterValue": {"type": ["string", "number", "boolean"]},
    "RequestId": {
        "type": ["string", "integer", "null"],
        "description": "returned as a string",
    },
}
"""Schemas that every model's paths refer to. Client generators give each union a name."""


def read_routes(app: FastAPI) -> Generator[None, None, bytes]:
    """Return FastAPI's document of its routes as JSON; yields after each route.

    It is made once per process, because it never changes. All routes take 25 ms, the largest one 4
    ms.
    """
    document: Schema = {}
    for route in iter_route_contexts(app.routes):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Duplicate Operation ID")  # replaced below
            one = get_openapi(
                title=app.title,
                version=app.version,
                summary=app.summary,
                description=error_table(),
                license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
                routes=[route],
            )
        paths, schemas = document.get("paths", {}), _schemas_in(document)
        for path, item in one["paths"].items():
            paths.setdefault(path, {}).update(item)
        schemas |= _schemas_in(one)
        document = {**one, "components": {"schemas": schemas}, "paths": paths}
        yield
    return orjson.dumps(document)


def _schemas_in(document: Schema) -> Schema:
    schemas: Schema = document.get("components", {}).get("schemas", {})
    return schemas


def describe_routes(
    read: bytes, served: Iterable[ServedModel], *, needs_key: bool = False
) -> Generator[None, None, Schema]:
    """Return the document without any model's own paths; yields after each path.

    read: The result of `read_routes`.
    served: The loaded versions. One of them is the example for routes with any model.
    needs_key: True if callers need a key. Default: False.
    """
    whole: Schema = orjson.loads(read)
    yield
    schemas = whole["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError", "ErrorBody"):  # 422 is 400 here
        schemas.pop(unused, None)
    schemas |= {"Error": ERROR, f"{OPENAI}Error": OPENAI_ERROR, **COMMON}
    whole["components"]["securitySchemes"] = {
        "admin": {"type": "http", "scheme": "bearer", "description": "COHORT_ADMIN_TOKEN"}
    }
    whole["security"] = []
    if needs_key:
        header = {"type": "apiKey", "in": "header", "name": "X-Api-Key"}
        whole["components"]["securitySchemes"]["key"] = header
        whole["security"] = [{"key": []}]
    example = next(
        (one for one in served if one.default and not are_shortened(one) and predict_examples(one)),
        None,
    )
    statuses, openai = set(INFERENCE_ERRORS), set[int]()
    for path, operations in whole["paths"].items():
        operations.pop("head", None)  # every GET has HEAD
        for method, operation in operations.items():
            _name_parameters(path, operation, example)
            _show_example(path, operation, example)
            told = _tell_errors(path, operation, needs_key=needs_key)
            (openai if path in OPENAI_PATHS else statuses).update(told)
            # FastAPI's ids repeat if one function serves several paths or methods.
            operation["operationId"] = "_".join(re.findall(r"\w+", f"{method} {path}"))
        yield
    whole["components"]["responses"] = {
        **error_components(statuses),
        **error_components(openai, OPENAI),
    }
    return whole


def error_table() -> str:
    """Return all errors and their statuses as a Markdown table."""
    rows = [
        f"| {kind.__name__} | {int(status)} |"
        for kind, status in HTTP_STATUS.items()
        if kind.__name__ != "Cancelled"
    ]
    head = 'Every error is `{"error": "a sentence", "code": "InvalidInput"}`:'
    return "\n".join([head, "", "| code | status |", "|---|---|", *rows])


def _name_parameters(path: str, operation: Schema, example: ServedModel | None) -> None:
    """Describe the parameters in a path, with existing values as examples."""
    known: Mapping[str, Any] = {} if example is None else _values_of(example)
    given = {one["name"]: one for one in operation.get("parameters", ()) if one["in"] == "path"}
    for name in re.findall(r"{(\w+)}", path):
        if name not in given:
            given[name] = {"name": name, "in": "path", "schema": {"type": "string"}}
            operation.setdefault("parameters", []).append(given[name])
        given[name] |= {"required": True} | ({"example": known[name]} if name in known else {})


def _values_of(example: ServedModel) -> dict[str, str]:
    model, version = example.model, example.version
    return {
        "model": model,
        "model_name": model,
        "version": version,
        "model_version": version,
    }


def _show_example(path: str, operation: Schema, example: ServedModel | None) -> None:
    """Set an example body that works, instead of one for a model that may not exist."""
    if not path.endswith(("predict", "infer")):
        return
    content = operation["requestBody"]["content"]["application/json"]
    for synthetic in ("example", "examples"):
        content.pop(synthetic, None)
        content["schema"].pop(synthetic, None)
    if path.endswith("infer"):
        takes_binary(operation)
    if example is None:
        return
    examples = predict_examples
    if path.endswith("infer"):
        examples = v2_examples
    elif path.startswith("/v1/"):
        examples = v1_examples
    body = next(iter(examples(example).values()))
    content["example"] = {"model": example.model, **body} if path == "/predict" else body


def _tell_errors(path: str, operation: Schema, *, needs_key: bool) -> set[int]:
    """Replace FastAPI's 422, which is 400 here, and add the path's errors; return all."""
    responses = operation.setdefault("responses", {})
    statuses = {int(status) for status in responses if status.isdigit() and int(status) >= 400}
    responses.pop("422", None)
    statuses = statuses - {422} | {400}  # an ambiguous head, on any route
    if needs_key and path in OPEN_PATHS:
        operation["security"] = []
    elif needs_key:
        statuses |= {401, 429}
    if "{" in path:
        statuses |= {404, 503}  # 503 before the first scan of the models
    if path.endswith("/ready"):
        statuses.add(503)
    if path.startswith("/admin/") or path.endswith(("/load", "/unload")):
        operation["security"] = [{"admin": []}]
        statuses |= {401, 403}
    if "requestBody" in operation:
        statuses |= {400, 413, 415}
    form = OPENAI if path in OPENAI_PATHS else ""
    responses |= error_responses(sorted(statuses), form)
    return statuses
