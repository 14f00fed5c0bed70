"""FastAPI's routes for OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request, Response

from cohort.connections.memory import MemoryHold
from cohort.errors import InvalidInput
from cohort.http.calls import respond_to_call
from cohort.http.credentials import visible_to
from cohort.http.event_stream import respond_with_text
from cohort.http.json_response import json_response
from cohort.http.media import check_json
from cohort.http.methods import Routes
from cohort.http.openai.chat import ChatCall, read_chat
from cohort.http.openai.completions import CompletionCall, read_completion
from cohort.http.openai.documents import (
    CHAT_DOCUMENT,
    COMPLETION_DOCUMENT,
    EMBEDDINGS_DOCUMENT,
)
from cohort.http.openai.embeddings import embeddings_route
from cohort.http.openai.error_body import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MODELS,
    openai_error_event,
)
from cohort.http.openai.models import list_models
from cohort.operating import ControlPlane
from cohort.serving import DataPlane

LONG_CHAT_BYTES = 16 << 10
"""Size above which a body is read on a thread."""

Reader = Callable[[bytes, MemoryHold], ChatCall | CompletionCall]


async def respond(plane: DataPlane, request: Request, read: Reader) -> Response:
    """Answer a request to a language model. Errors name the fields as the request does."""
    check_json(request.headers)
    call: ChatCall | CompletionCall | None = None

    def make(body: bytes) -> ChatCall | CompletionCall:
        nonlocal call
        call = read(body, request.state.memory)
        return call

    try:
        return await respond_with_text(
            plane, request, make, write_error=openai_error_event, long_bytes=LONG_CHAT_BYTES
        )
    except InvalidInput as error:
        if call is not None:
            error.parameter = call.names.get(error.parameter, error.parameter)
        raise


def openai_router(data: DataPlane, control: ControlPlane) -> Routes:
    """Return the routes. V1's routes answer for a single model."""
    routes = Routes(tags=["OpenAI"])

    async def chat(request: Request) -> Response:
        """Answer the last of the messages, whole or as server-sent events."""
        return await respond(data, request, read_chat)

    async def complete(request: Request) -> Response:
        """Continue one or several prompts, whole or as server-sent events."""
        return await respond(data, request, read_completion)

    async def embed(request: Request) -> Response:
        """Return the vectors of texts, by an encoder whose config has a tokenizer."""
        check_json(request.headers)
        return await respond_to_call(data, request, embeddings_route())

    def models(request: Request) -> Response:
        """List the language models and encoders."""
        return json_response(list_models(control.limited_to(visible_to(request.scope))))

    routes.post(CHAT, summary="Chat", **CHAT_DOCUMENT)(chat)
    routes.post(COMPLETIONS, summary="Complete text", **COMPLETION_DOCUMENT)(complete)
    routes.post(EMBEDDINGS, summary="Embed text", **EMBEDDINGS_DOCUMENT)(embed)
    document: dict[str, Any] = {"response_model": dict[str, Any]}
    routes.get(MODELS, summary="Language models", **document)(models)
    return routes
