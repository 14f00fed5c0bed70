"""FastAPI's routes for `POST /v2/models/{model}/generate` and `generate_stream`."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from cohort.http.event_stream import respond_with_text
from cohort.http.v2.documents import GENERATE, GENERATE_STREAM
from cohort.http.v2.generate import GenerateCall, error_event
from cohort.serving import DataPlane


def generate_router(plane: DataPlane) -> APIRouter:
    """Return the routes, served from `plane`."""
    routes = APIRouter(prefix="/v2")
    of_model, of_version = "/models/{model}", "/models/{model}/versions/{version}"

    async def respond(
        request: Request, model: str, version: str | None, *, streamed: bool
    ) -> Response:
        sticky = plane.sticky_parameter(model)
        read = partial(GenerateCall, model=model, version=version, streamed=streamed, sticky=sticky)
        return await respond_with_text(
            plane, request, read, write_error=error_event, model=model, version=version
        )

    @routes.post(f"{of_model}/generate", summary="Generate text", **GENERATE)
    async def generate(request: Request, model: str) -> Response:
        return await respond(request, model, None, streamed=False)

    @routes.post(f"{of_version}/generate", summary="Generate text, with a version", **GENERATE)
    async def generate_version(request: Request, model: str, version: str) -> Response:
        """A pinned version bypasses any rollout."""
        return await respond(request, model, version, streamed=False)

    @routes.post(f"{of_model}/generate_stream", summary="Stream text", **GENERATE_STREAM)
    async def stream(request: Request, model: str) -> Response:
        """An error after the first event is an event: `{"error": …, "code": …}`."""
        return await respond(request, model, None, streamed=True)

    @routes.post(
        f"{of_version}/generate_stream", summary="Stream text, with a version", **GENERATE_STREAM
    )
    async def stream_version(request: Request, model: str, version: str) -> Response:
        """A pinned version bypasses any rollout."""
        return await respond(request, model, version, streamed=True)

    return routes
