"""Routes for models' states, descriptions and metrics."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import Request, Response
from starlette.responses import StreamingResponse

from cohort.auth.authority import Authority
from cohort.codec.compression import GZIP
from cohort.http.compression import LEVEL, accepts_gzip
from cohort.http.credentials import credentials_in, visible_to
from cohort.http.json_response import json_response
from cohort.http.methods import Routes
from cohort.operating import ControlPlane, ModelReader


def models_router(plane: ControlPlane, *, authority: Authority) -> Routes:
    """Return the routes, served from `plane`."""
    routes = Routes(tags=["models"])

    def reader(request: Request) -> ModelReader:
        return plane.limited_to(visible_to(request.scope))

    @routes.get(
        "/models", summary="Every model and its versions' states", response_model=dict[str, Any]
    )
    async def models(request: Request) -> Response:
        return await asyncio.to_thread(json_response, await plane.models(reader(request)))

    @routes.get("/models/{model}", summary="One model in full", response_model=dict[str, Any])
    async def model(request: Request, model: str) -> Response:
        return await asyncio.to_thread(json_response, await plane.model(reader(request), model))

    @routes.get(
        "/models/{model}/versions/{version}",
        summary="One version in full",
        response_model=dict[str, Any],
    )
    def version(request: Request, model: str, version: str) -> Response:
        return json_response(reader(request).version(model, version))

    @routes.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        authority.check_metrics(credentials_in(request.scope))
        blocks, content_type = await plane.metrics_text(request.headers.get("accept", ""))
        headers = {"content-type": content_type, "vary": "accept-encoding"}
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            headers["content-encoding"] = "gzip"
            return StreamingResponse(gzipped(blocks), headers=headers)
        headers["content-length"] = str(sum(map(len, blocks)))
        return StreamingResponse(one_by_one(blocks), headers=headers)

    return routes


async def gzipped(blocks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the blocks compressed. Each takes about a millisecond on a thread."""
    packer = zlib.compressobj(LEVEL, wbits=GZIP)
    for block in blocks:
        yield await asyncio.to_thread(packer.compress, block)
    yield packer.flush()


async def one_by_one(blocks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield blocks one by one, each after the client has read the last and other tasks have run."""
    for block in blocks:
        yield block
        await asyncio.sleep(0)
