"""The whole document, built again when what is loaded has changed.

It is bounded, whatever is loaded: versions whose paths do not fit into it are left out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response
from starlette.routing import Route

from app.control_plane import ControlPlane, ServedModel, Shared
from app.errors import ModelNotFound
from app.rest.callers import OPEN_PATHS
from app.rest.credentials import visible_to
from app.rest.errors import HTTP_STATUS
from app.rest.openapi.binary_calls import HOST
from app.rest.openapi.examples import are_shortened, predict_examples, v1_examples, v2_examples
from app.rest.openapi.model_paths import (
    error_components,
    error_responses,
    paths_of,
    tag,
    takes_binary,
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

MAX_OWN_BYTES = 2 << 20
"""The size of all models' own paths together: of about eighty. The page takes seconds for them."""


def install_openapi(app: FastAPI, plane: ControlPlane, *, needs_key: bool = False) -> None:
    """Have `app` describe itself with what is loaded, and the caller may see, at each request.

    `needs_key` is whether callers need a key.
    """
    documents: dict[tuple[frozenset[str] | None, str, str | None], tuple[Served, Pieces]] = {}

    def make(served: Served, root: str, model: str | None) -> Pieces:
        shown = [one for one in served if model in (None, one.model)]
        return cut_at_hosts(write_document(app, shown, needs_key=needs_key, root=root))

    shared = Shared(make)

    async def show(request: Request) -> Response:
        models, model = visible_to(request.scope), request.query_params.get("model")
        key = models, request.scope.get("root_path", "").rstrip("/"), model
        served = plane.seen_by(models).served()
        if model is not None and not any(one.model == model for one in served):
            raise ModelNotFound(model, {one.model for one in served})
        if key not in documents or documents[key][0] is not served:
            made = await shared.get((key, id(served)), served, *key[1:])
            if len(documents) >= MAX_DOCUMENTS:
                documents.clear()
            documents[key] = served, made
        document = at_host(documents[key][1], request.scope["scheme"], request.headers.get("host"))
        return Response(document, media_type="application/json")

    app.openapi = lambda: orjson.loads(  # type: ignore[method-assign]  # as FastAPI documents
        write_document(app, plane.served(), needs_key=needs_key)
    )
    if app.openapi_url is not None:
        app.router.routes.insert(0, Route(app.openapi_url, show))  # FastAPI's knows no callers


_PLAIN_HOST = re.compile(
    r"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?"
)
"""A Host header that may stand in a command: nothing in it means anything to a shell."""

URL = f"http://{HOST}".encode()
CLIENT = f'Client(\\"{HOST}'.encode()  # as it stands in JSON

Pieces = Sequence[bytes]
"""A document; each second piece is a URL or CLIENT. Replacing them in one takes ten times as long,
while nothing else runs.
"""


def cut_at_hosts(document: bytes) -> Pieces:
    """Cut a document where it names the server's host."""
    return re.split(b"(%b|%b)" % (re.escape(URL), re.escape(CLIENT)), document)


def at_host(pieces: Pieces, scheme: str, host: str | None) -> bytes:
    """A document whose calls to copy go where the caller has found the server."""
    if host is None or not _PLAIN_HOST.fullmatch(host):
        return b"".join(pieces)
    tls = "ssl=True, url=" if scheme == "https" else ""
    there = {URL: f"{scheme}://{host}".encode(), CLIENT: f'Client({tls}\\"{host}'.encode()}
    named = [*pieces]
    named[1::2] = [there[piece] for piece in pieces[1::2]]
    return b"".join(named)


def write_document(
    app: FastAPI, served: Sequence[ServedModel], *, needs_key: bool = False, root: str = ""
) -> bytes:
    """The OpenAPI document for `app` with these versions loaded, at the path `root`.

    Written path by path: no other thread runs while orjson writes.
    """
    shown: list[tuple[ServedModel, dict[str, bytes]]] = []
    left, names = MAX_OWN_BYTES, set[str]()
    for version in sorted(served, key=lambda one: (not one.default, one.model)):
        paths = paths_of(version, root=root, needs_key=needs_key)
        for path, item in paths.items():
            item["post"]["operationId"] = _own_name(path, names)
        written = {path: orjson.dumps(item) for path, item in paths.items()}
        left -= sum(map(len, written.values()))
        if left < 0:
            break
        shown.append((version, written))
    shown.sort(key=lambda one: (one[0].model, not one[0].default))
    document = _describe_routes(app, served, needs_key=needs_key)
    document["servers"] = [{"url": root or "/"}]
    document["tags"] = [
        {"name": tag(name), "description": "This model's own paths."}
        for name in dict.fromkeys(version.model for version, _ in shown)
    ]
    if len(shown) < len(served):
        document["info"]["description"] += (
            f"\n\nOf {len(served):,} versions that are loaded, {len(shown):,} have paths of their "
            "own here. Those with `{model}` are for all, and `/openapi.json?model=…` has the paths "
            "of one model."
        )
    routes = {path: orjson.dumps(item) for path, item in document.pop("paths").items()}
    members = b",".join(
        orjson.dumps(path) + b":" + item
        for paths in (*(paths for _, paths in shown), routes)
        for path, item in paths.items()
    )
    return orjson.dumps({**document, "paths": orjson.Fragment(b"{" + members + b"}")})


def _own_name(path: str, taken: set[str]) -> str:
    """A name for an operation that no other has: paths may differ only in what no name can hold."""
    plain = name = "".join(one if one.isalnum() else "_" for one in path[1:])
    number = 1
    while name in taken:
        number += 1
        name = f"{plain}_{number}"
    taken.add(name)
    return name


def _describe_routes(
    app: FastAPI, served: Iterable[ServedModel], *, needs_key: bool = False
) -> Schema:
    """The document without any model's own paths."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate Operation ID")  # they get others below
        whole: Schema = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            description=error_table(),
            license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
            routes=app.routes,
        )
    schemas = whole.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError", "ErrorBody"):  # 422 is 400 here
        schemas.pop(unused, None)
    schemas["Error"] = ERROR
    whole["components"]["responses"] = error_components()
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
    for path, operations in whole["paths"].items():
        operations.pop("head", None)  # it is wherever GET is
        for method, operation in operations.items():
            _name_parameters(path, operation, example)
            _show_example(path, operation, example)
            _tell_errors(path, operation, needs_key=needs_key)
            # FastAPI's own repeats where one function serves several paths or methods.
            operation["operationId"] = "_".join(re.findall(r"\w+", f"{method} {path}"))
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


def _tell_errors(path: str, operation: Schema, *, needs_key: bool) -> None:
    """Leave FastAPI's 422 out, which is 400 here, and add the errors of such routes."""
    responses = operation.setdefault("responses", {})
    statuses = {int(status) for status in responses if status.isdigit() and int(status) >= 400}
    responses.pop("422", None)
    statuses = statuses - {422} | {400}  # a head that is ambiguous, on any route
    if needs_key and path in OPEN_PATHS:
        operation["security"] = []
    elif needs_key:
        statuses |= {401, 429}
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
