"""`/playground`: the page for people and its own routes.

The page consists of modules in the folder `page`, which browsers load unchanged. Their address has
their digest, so that browsers can cache them. The page contains no model data. It uses the same API
as every client, with a key if callers need one.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from cohort.auth.authority import Authority
from cohort.errors import CohortError, Forbidden, NotFound, quoted
from cohort.http.compression import accepts_gzip
from cohort.http.credentials import credentials_in, visible_to
from cohort.http.json_response import json_response
from cohort.http.openapi.examples import are_shortened, predict_examples
from cohort.http.route_path import way_up
from cohort.operating import LIVE_BOUNDS, NOT_ON_DISK, ControlPlane, LiveSample

PLAYGROUND = "/playground"

_FOLDER = Path(__file__).with_name("page")

RUNTIME = _FOLDER / "runtime"
"""ONNX Runtime for browsers, installed by `make page-runtime`."""

RUNTIME_TYPES = {".mjs": "text/javascript; charset=utf-8", ".wasm": "application/wasm"}

MEDIA_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; "
    "style-src 'self'; img-src 'self' data: blob:; media-src blob:; connect-src 'self'; "
    "worker-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Headers of the page. It loads everything from this server, and cannot be framed."""

FOR_EVER = {"cache-control": "public, max-age=31536000, immutable"}
NOT_KEPT = {"cache-control": "no-cache"}


@dataclass(frozen=True, slots=True)
class PageFiles:
    """The files of the page.

    index: The HTML of the page, with placeholders for addresses.
    files: The other files by name: their bytes and media types.
    digest: A digest of all files.
    """

    index: str
    files: Mapping[str, tuple[bytes, str]]
    digest: str


@lru_cache(1)
def page_files() -> PageFiles:
    """Read the files of the page, about 100 KB."""
    files = {
        path.name: (path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in sorted(_FOLDER.iterdir())
        if path.suffix in MEDIA_TYPES
    }
    digest = sha256()
    for name, (content, _) in files.items():
        digest.update(b"%b %d\n%b" % (name.encode(), len(content), content))
    index = (_FOLDER / "index.html").read_text(encoding="utf-8")
    return PageFiles(index, files, digest.hexdigest()[:16])


@lru_cache
def packed(content: bytes) -> bytes:
    """Return a file of the page as gzip, about a third of its size. It is made on first use."""
    return gzip.compress(content, 6, mtime=0)


def runtime_version() -> str:
    """Return the installed release of ONNX Runtime for browsers, or "" if it is not installed."""
    try:
        described = orjson.loads((RUNTIME / "package.json").read_bytes())
    except (OSError, ValueError):
        return ""
    return str(described["version"])


def install_playground(app: FastAPI, plane: ControlPlane, *, authority: Authority) -> None:
    """Serve the page from `app`."""
    page, runtime = page_files(), runtime_version()

    async def show(request: Request) -> Response:
        root = way_up(request.scope)
        files = f"{root}{PLAYGROUND}/files/{page.digest}"
        text = page.index.replace("{{files}}", files).replace("{{root}}", root)
        return HTMLResponse(text, headers=PAGE_HEADERS)

    async def file(request: Request) -> Response:
        name, digest = request.path_params["name"], request.path_params["digest"]
        if name not in page.files:
            raise NotFound(f"{quoted(name)} is not a file of the page")
        content, media_type = page.files[name]
        # A replica of another release may have sent the page, with other files.
        kept = FOR_EVER if digest == page.digest else NOT_KEPT
        headers = kept | {"vary": "accept-encoding"}
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            content = packed(content)
            headers |= {"content-encoding": "gzip"}
        return Response(content, media_type=media_type, headers=headers)

    async def example(request: Request) -> Response:
        names = request.path_params
        reader = plane.limited_to(visible_to(request.scope))
        version = reader.ready(names["model"], names["version"])
        served = (
            one for one in reader.served() if (one.model, one.version) == (names["model"], version)
        )
        found: dict[str, Any] = {"example": None, "files": [], "runtime": runtime}
        with suppress(Forbidden, NotFound):
            found["files"] = sorted(reader.given_out(names["model"], version).paths)
        for one in served:
            bodies = {} if are_shortened(one) else await asyncio.to_thread(predict_examples, one)
            found["example"] = bodies["by name"]["inputs"] if bodies else None
            found["made_up"] = one.made_up
        return json_response(found)

    async def model_file(request: Request) -> Response:
        names = request.path_params
        reader = plane.limited_to(visible_to(request.scope))
        files = reader.given_out(names["model"], names["version"])
        name = unquote(names["file"])  # other paths are not unquoted, but a file may have any name
        if name not in files.paths:
            raise NotFound(f"{quoted(name)} is not a file of {quoted(names['model'])}")
        path = files.paths[name]
        if not await asyncio.to_thread(files.are_on_disk):
            raise NotFound(NOT_ON_DISK.format(quoted(names["model"])))
        found = await asyncio.to_thread(path.stat)
        given = FileResponse(
            path, media_type="application/octet-stream", headers=NOT_KEPT, stat_result=found
        )
        if given.headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(
                None, HTTPStatus.NOT_MODIFIED, NOT_KEPT | {"etag": given.headers["etag"]}
            )
        return given

    async def graph(request: Request) -> Response:
        names = request.path_params
        reader = plane.limited_to(visible_to(request.scope))
        drawn = await plane.drawings.of(reader.drawable(names["model"], names["version"]))
        headers = NOT_KEPT | {"vary": "accept-encoding"}
        if not accepts_gzip(request.headers.get("accept-encoding", "")):
            return StreamingResponse(_unpacked(drawn), media_type=GRAPH_TYPE, headers=headers)
        headers |= {"content-encoding": "gzip"}
        return Response(drawn, media_type=GRAPH_TYPE, headers=headers)

    async def runtime_file(request: Request) -> Response:
        name = request.path_params["name"]
        media_type = RUNTIME_TYPES.get(Path(name).suffix)
        path = RUNTIME / Path(name).name
        known = request.path_params["release"] == runtime and media_type is not None
        if not known or not path.is_file():
            raise NotFound(f"{quoted(name)} is not a file of ONNX Runtime for browsers")
        return FileResponse(path, media_type=media_type, headers=PAGE_HEADERS | FOR_EVER)

    async def live(request: Request) -> Response:
        sent = credentials_in(request.scope)

        def models() -> frozenset[str] | None:
            authority.check_metrics(sent)
            return authority.visible(sent)

        models()
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # for nginx
        if request.method == "HEAD":
            return Response(media_type=EVENTS, headers=headers)
        watched = plane.live.watch(lambda: plane.draining)
        history = await anext(watched)
        events = _events(history, watched, models)
        return StreamingResponse(events, media_type=EVENTS, headers=headers)

    for path, endpoint in (
        (PLAYGROUND, show),
        (f"{PLAYGROUND}/live", show),
        (f"{PLAYGROUND}/models/{{model}}", show),
        (f"{PLAYGROUND}/files/{{digest}}/{{name}}", file),
        (f"{PLAYGROUND}/models/{{model}}/versions/{{version}}", show),
        (f"{PLAYGROUND}/data/{{model}}/{{version}}", example),
        (f"{PLAYGROUND}/data/{{model}}/{{version}}/graph", graph),
        (f"{PLAYGROUND}/data/{{model}}/{{version}}/files/{{file:path}}", model_file),
        (f"{PLAYGROUND}/data/live", live),
        (f"{PLAYGROUND}/runtime/{{release}}/{{name}}", runtime_file),
    ):
        app.router.routes.append(Route(path, endpoint))


GRAPH_TYPE = "application/json"
EVENTS = "text/event-stream"

UNPACKED_AT_ONCE = 64 << 10
"""Bytes of a graph per piece. A graph can be 100 times as large as its gzip."""


async def _unpacked(left: bytes) -> AsyncIterator[bytes]:
    """Yield the contents of gzip in pieces, each after the previous one was sent."""
    unpack = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    while left and (piece := unpack.decompress(left, UNPACKED_AT_ONCE)):
        left = unpack.unconsumed_tail
        yield piece
    yield unpack.flush()


SAMPLES_AT_ONCE = 30
"""Samples of a history per event. The event loop runs other tasks after each."""


async def _events(
    history: list[LiveSample],
    later: AsyncGenerator[list[LiveSample], None],
    models: Callable[[], frozenset[str] | None],
) -> AsyncIterator[bytes]:
    """Yield samples as server-sent events: the history in the first ones, then one event each.

    models: Returns the models that the viewer may see now. Raises Unauthorized if it may not see
        any.

    https://html.spec.whatwg.org/multipage/server-sent-events.html
    """
    yield b"event: bounds\ndata: %b\n\n" % orjson.dumps(LIVE_BOUNDS)
    async with aclosing(later):
        with suppress(CohortError):  # its key was removed: the next request gets the error
            for start in range(0, len(history) or 1, SAMPLES_AT_ONCE):
                yield _event(history[start : start + SAMPLES_AT_ONCE], models())
                await asyncio.sleep(0)
            async for samples in later:
                yield _event(samples, models())


def _event(samples: list[LiveSample], models: frozenset[str] | None) -> bytes:
    return b"data: [%b]\n\n" % b",".join(one.limited_to(models) for one in samples)
