"""FastAPI's routes for OpenAI's API."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from cohort.http.credentials import visible_to
from cohort.http.json_response import json_response
from cohort.http.methods import Routes
from cohort.http.openai.chat import read_chat
from cohort.http.openai.completions import read_completion
from cohort.http.openai.documents import CHAT_DOCUMENT, COMPLETION_DOCUMENT
from cohort.http.openai.error_body import CHAT, COMPLETIONS, MODELS
from cohort.http.openai.models import list_models
from cohort.http.openai.streams import respond_to_text
from cohort.operating import ControlPlane
from cohort.serving import DataPlane


def openai_router(data: DataPlane, control: ControlPlane) -> Routes:
    """Return the routes. V1's routes answer for a single model."""
    routes = Routes(tags=["OpenAI"])

    async def chat(request: Request) -> Response:
        """Answer the last of the messages, whole or as server-sent events."""
        return await respond_to_text(data, request, read_chat)

    async def complete(request: Request) -> Response:
        """Continue one or several prompts, whole or as server-sent events."""
        return await respond_to_text(data, request, read_completion)

    def models(request: Request) -> Response:
        """List the language models and encoders."""
        return json_response(list_models(control.limited_to(visible_to(request.scope))))

    routes.post(CHAT, summary="Chat", **CHAT_DOCUMENT)(chat)
    routes.post(COMPLETIONS, summary="Complete text", **COMPLETION_DOCUMENT)(complete)
    document: dict[str, Any] = {"response_model": dict[str, Any]}
    routes.get(MODELS, summary="Language models", **document)(models)
    return routes
