"""The whole document, built again when what is loaded has changed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response
from starlette.routing import Route

from app.control_plane import ControlPlane, ServedModel, Shared
from app.rest.credentials import visible_to
from app.rest.errors import HTTP_STATUS
from app.rest.openapi.model_paths import (
    error_responses,
    examples,
    paths_of,
    tag,
    v1_examples,
    v2_example,
)
from app.rest.openapi.schemas import Schema

ERROR: Schema = {
    "title": "Error",
    "description": "Every error, on every route.",
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "a sentence"},
        "code": {"type": "string", "description": "its name, also in the metrics"},
    },
    "required": ["error", "code"],
}


Served = tuple[ServedModel, ...]

MAX_DOCUMENTS = 16
"""Documents that are kept, one for each set of models that callers may see."""


def install_openapi(app: FastAPI, plane: ControlPlane, *, needs_key: bool = False) -> None:
    """Have `app` describe itself with what is loaded, and the caller may see, at each request.

    `needs_key` is whether callers need a key.
    """
    documents: dict[tuple[frozenset[str] | None, str], tuple[Served, bytes]] = {}

    def make(served: Served, root: str) -> bytes:
        document = make_document(app, served, needs_key=needs_key)
        return write_document({**document, "servers": [{"url": root}]} if root else document)

    shared = Shared(make)

    async def show(request: Request) -> Response:
        models = visible_to(request.scope)
        key = models, request.scope.get("root_path", "").rstrip("/")
        served = plane.seen_by(models).served()
        if key not in documents or documents[key][0] is not served:
            made = await shared.get((key, id(served)), served, key[1])
            if len(documents) >= MAX_DOCUMENTS:
                documents.clear()
            documents[key] = served, made
        return Response(documents[key][1], media_type="application/json")

    app.openapi = lambda: make_document(  # type: ignore[method-assign]  # as FastAPI documents
        app, plane.served(), needs_key=needs_key
    )
    if app.openapi_url is not None:
        app.router.routes.insert(0, Route(app.openapi_url, show))  # FastAPI's knows no callers


def write_document(document: Schema) -> bytes:
    """Write a document path by path: no other thread runs while orjson writes."""
    rest = {key: value for key, value in document.items() if key != "paths"}
    paths = b",".join(
        orjson.dumps(path) + b":" + orjson.dumps(item) for path, item in document["paths"].items()
    )
    return orjson.dumps({**rest, "paths": orjson.Fragment(b"{" + paths + b"}")})


def make_document(
    app: FastAPI, served: Sequence[ServedModel], *, needs_key: bool = False
) -> Schema:
    """The whole OpenAPI document for `app` with these versions loaded."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate Operation ID")  # they get others below
        whole: Schema = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            description=error_table(),
            routes=app.routes,
        )
    schemas = whole.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's 422 is 400 here
        schemas.pop(unused, None)
    schemas["Error"] = ERROR
    whole["components"]["securitySchemes"] = {
        "admin": {"type": "http", "scheme": "bearer", "description": "COHORT_ADMIN_TOKEN"}
    }
    if needs_key:
        header = {"type": "apiKey", "in": "header", "name": "X-Api-Key"}
        whole["components"]["securitySchemes"]["key"] = header
        whole["security"] = [{"key": []}]
    example = next((one for one in served if one.default and examples(one)), None)
    for path, operations in whole["paths"].items():
        for method, operation in operations.items():
            _name_parameters(path, operation, example)
            _show_example(path, operation, example)
            _tell_errors(path, operation)
            # FastAPI's own repeats where one function serves several paths or methods.
            operation["operationId"] = "_".join(re.findall(r"\w+", f"{method} {path}"))
    own: Schema = {}
    for version in sorted(served, key=lambda one: (one.model, not one.default)):
        own |= paths_of(version)
    whole["paths"] = own | whole["paths"]
    whole["tags"] = [
        {"name": tag(name), "description": "This model's own paths."}
        for name in dict.fromkeys(version.model for version in served)
    ]
    return whole


def error_table() -> str:
    """All errors and their statuses as a Markdown table."""
    rows = [
        f"| {kind.__name__} | {int(status)} |"
        for kind, status in HTTP_STATUS.items()
        if kind.__name__ != "Cancelled"
    ]
    head = 'Every error is `{"error": "a sentence", "code": "InvalidInput"}`:'
    return "\n".join([head, "", "| code | status |", "|---|---|", *rows])


def _name_parameters(path: str, operation: Schema, example: ServedModel | None) -> None:
    """Describe what stands in braces, with values that are there."""
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
    """A body that works, in place of one for a model that may not be here."""
    if not path.endswith(("predict", "infer")):
        return
    content = operation["requestBody"]["content"]["application/json"]
    for synthetic in ("example", "examples"):
        content.pop(synthetic, None)
        content["schema"].pop(synthetic, None)
    if example is None:
        return
    if path.endswith("infer"):
        content["example"] = v2_example(example)
        return
    shown = v1_examples(example) if path.startswith("/v1/") else examples(example)
    body = next(iter(shown.values()))
    content["example"] = {"model": example.model, **body} if path == "/predict" else body


def _tell_errors(path: str, operation: Schema) -> None:
    """Leave FastAPI's 422 out, which is 400 here, and add the errors of such routes."""
    responses = operation.setdefault("responses", {})
    statuses = {int(status) for status in responses if status.isdigit() and int(status) >= 400}
    if "422" in responses:
        del responses["422"]
        statuses = statuses - {422} | {400}
    if "{" in path:
        statuses |= {404, 503}  # 503 before the first look at the models
    if path.endswith("/ready"):
        statuses.add(503)
    if path.startswith("/admin/") or path.endswith(("/load", "/unload")):
        operation["security"] = [{"admin": []}]
        statuses |= {401, 403}
    if "requestBody" in operation:
        statuses |= {400, 413, 415}
    responses |= error_responses(sorted(statuses))
