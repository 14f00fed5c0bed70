"""The OpenAPI document, rebuilt when the loaded models change.

Its size is limited: versions whose paths do not fit are left out.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.routing import Route

from cohort.errors import ModelNotFound
from cohort.http.credentials import visible_to
from cohort.http.openapi.binary_calls import HOST
from cohort.http.openapi.components import take_components
from cohort.http.openapi.model_paths import paths_of, tag
from cohort.http.openapi.routes import describe_routes, read_routes
from cohort.http.openapi.schemas import Schema
from cohort.http.route_path import root_of
from cohort.operating import ControlPlane, ServedModel, Shared, at_once, in_turns

Served = tuple[ServedModel, ...]

RELATIVE = "relative"
"""Query parameter for a document whose server URL is relative to the document in any case.

/docs uses it, so that any prefix that a proxy removes is correct. A proxy that sends the prefix in
x-forwarded-prefix gets the same.
"""

MAX_DOCUMENTS = 16
"""Cached documents, one for each set of models that callers may see."""

MAX_OWN_BYTES = 2 << 20
"""Maximum size of all models' own paths, enough for about 80. The page takes seconds to show them.
"""


def install_openapi(app: FastAPI, plane: ControlPlane, *, needs_key: bool = False) -> None:
    """Have `app` describe, at each request, the loaded models that the caller may see.

    needs_key: True if callers need a key.
    """
    documents: dict[tuple[frozenset[str] | None, str, str | None], tuple[Served, Pieces]] = {}
    read = b""

    async def make(served: Served, root: str, model: str | None) -> Pieces:
        nonlocal read
        read = read or await in_turns(read_routes(app))
        shown = [one for one in served if model in (None, one.model)]
        return await in_turns(write_document(read, shown, needs_key=needs_key, root=root))

    shared = Shared(make)

    async def show(request: Request) -> Response:
        models, model = visible_to(request.scope), request.query_params.get("model")
        root = root_of(request.scope)
        if RELATIVE in request.query_params or "x-forwarded-prefix" in request.headers:
            root = root or "."
        key = models, root, model
        served = plane.limited_to(models).served()
        if model is not None and not any(one.model == model for one in served):
            raise ModelNotFound(model, {one.model for one in served})
        if key not in documents or documents[key][0] is not served:
            made = await shared.get((key, id(served)), served, *key[1:])
            if len(documents) >= MAX_DOCUMENTS:
                documents.clear()
            documents[key] = served, made
        document = at_host(documents[key][1], request.scope["scheme"], request.headers.get("host"))
        return Response(document, media_type="application/json")

    def document() -> dict[str, Any]:
        read = at_once(read_routes(app))
        pieces = at_once(write_document(read, plane.limited_to(None).served(), needs_key=needs_key))
        whole: dict[str, Any] = orjson.loads(at_host(pieces, "http", None))
        return whole

    app.openapi = document  # type: ignore[method-assign]  # as FastAPI documents
    if app.openapi_url is not None:
        app.router.routes.insert(
            0, Route(app.openapi_url, show)
        )  # FastAPI's own route ignores the caller


_PLAIN_HOST = re.compile(
    r"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?"
)
"""A Host header without characters that a shell interprets, so that a command may contain it."""

URL = f"http://{HOST}".encode()
CLIENT = f'Client(\\"{HOST}'.encode()  # as it is written in JSON

Pieces = Sequence[Sequence[bytes]]
"""A document in parts. Every second piece of a part is URL or CLIENT.

Replacing them in one text takes ten times as long, and blocks all other work.
"""


def cut_at_hosts(part: bytes) -> Sequence[bytes]:
    """Split a part of a document at the server's host."""
    return _HOSTS.split(part)


_HOSTS = re.compile(b"(%b|%b)" % (re.escape(URL), re.escape(CLIENT)))


def at_host(parts: Pieces, scheme: str, host: str | None) -> bytes:
    """Return a document whose copyable calls use the host of this request."""
    if host is None or not _PLAIN_HOST.fullmatch(host):
        return b"".join([piece for pieces in parts for piece in pieces])
    tls = "ssl=True, url=" if scheme == "https" else ""
    there = {URL: f"{scheme}://{host}".encode(), CLIENT: f'Client({tls}\\"{host}'.encode()}
    named: list[bytes] = []
    for pieces in parts:
        part = [*pieces]
        part[1::2] = [there[piece] for piece in pieces[1::2]]
        named += part
    return b"".join(named)


def write_document(
    read: bytes, served: Sequence[ServedModel], *, needs_key: bool = False, root: str = ""
) -> Generator[None, None, Pieces]:
    """Write the OpenAPI document for the loaded versions, with the path `root` as its server.

    Without a `root`, the server is relative to the document. Yields after each path, because orjson
    blocks all threads and the event loop.

    read: The result of `read_routes`.
    """
    shown: list[tuple[ServedModel, list[Sequence[bytes]]]] = []
    schemas: list[bytes] = []  # one per version, without any host
    left, names = MAX_OWN_BYTES, set[str]()
    for version in sorted(served, key=lambda one: (not one.default, one.model)):
        written: list[Sequence[bytes]] = []
        own: list[bytes] = []
        for path, item in paths_of(version, root=root.lstrip("."), needs_key=needs_key).items():
            item["post"]["operationId"] = _own_name(path, names)
            taken = take_components(item["post"])
            own += [_member(name, schema) for name, schema in taken.items()]
            member = _member(path, item)
            left -= len(member)
            written.append(cut_at_hosts(member))
            yield
        left -= sum(map(len, own))
        if left < 0:
            break
        schemas += [b",".join(own)] if own else []
        shown.append((version, written))
    shown.sort(key=lambda one: (one[0].model, not one[0].default))
    document = yield from describe_routes(read, served, needs_key=needs_key)
    common = document["components"].pop("schemas")
    document["servers"] = [{"url": root or "."}]
    document["tags"] = [
        {"name": tag(name), "description": "The paths of this model."}
        for name in dict.fromkeys(version.model for version, _ in shown)
    ]
    if len(shown) < len(served):
        document["info"]["description"] += (
            f"\n\n{len(shown):,} of {len(served):,} loaded versions have their own paths "
            "here. Paths with `{model}` work for all, and `/openapi.json?model=…` has the paths "
            "of one model."
        )
    members = [member for _, members in shown for member in members]
    for path, item in document.pop("paths").items():
        members.append(cut_at_hosts(_member(path, item)))
        yield
    schemas += [_member(name, schema) for name, schema in common.items()]
    components = orjson.dumps(document.pop("components"))[:-1] + b',"schemas":{'
    parts: list[Sequence[bytes]] = [
        cut_at_hosts(orjson.dumps(document)[:-1] + b',"components":'),
        [components],
        [b",".join(schemas)],
        [b'}},"paths":{'],
    ]
    for number, cut in enumerate(members):
        parts += [[b","], cut] if number else [cut]
    return [*parts, [b"}}"]]


def _member(path: str, item: Schema) -> bytes:
    return orjson.dumps(path) + b":" + orjson.dumps(item)


def _own_name(path: str, taken: set[str]) -> str:
    """Return a unique name for an operation, as paths may differ only in punctuation."""
    plain = name = "".join(one if one.isalnum() else "_" for one in path[1:])
    number = 1
    while name in taken:
        number += 1
        name = f"{plain}_{number}"
    taken.add(name)
    return name
