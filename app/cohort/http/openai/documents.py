"""OpenAI's routes in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from cohort.http.predict.routes import ErrorBody

_TEXT = {"type": "string"}
_TEXTS = {"oneOf": [_TEXT, {"type": "array", "items": {}, "minItems": 1}]}
_OPTIONS: dict[str, Any] = {
    "model": _TEXT,
    "max_tokens": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": -1},
    "n": {"type": "integer", "minimum": 1, "maximum": 16},
    "seed": {"type": "integer"},
    "stop": {"oneOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 16}]},
    "stream": {"type": "boolean"},
    "response_format": {"type": "object"},
}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"oneOf": [_TEXT, {"type": "array", "items": {"type": "object"}}]},
    },
    "required": ["role"],
}


_JSON: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_EVENTS: dict[str, Any] = {"text/event-stream": {"schema": _TEXT}}


def _document(
    title: str,
    keys: dict[str, Any],
    required: str,
    answer: str = "The answer; with 'stream', server-sent events that end with [DONE]",
    content: dict[str, Any] = _JSON | _EVENTS,
) -> dict[str, Any]:
    """Return how FastAPI describes a route whose body has these keys, one of them required."""
    schema = {"title": title, "type": "object", "properties": keys, "required": [required]}
    return {
        "responses": {
            200: {"description": answer, "content": content},
            **{status: {"model": ErrorBody} for status in (400, 404, 413, 415, 429, 500, 503, 504)},
        },
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
    }


CHAT_DOCUMENT = _document(
    "Chat",
    {
        **_OPTIONS,
        "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
        "tools": {"type": "array", "items": {"type": "object"}},
    },
    "messages",
)

EMBEDDINGS_DOCUMENT = _document(
    "Embeddings",
    {
        "model": _TEXT,
        "input": _TEXTS,
        "encoding_format": {"enum": ["float", "base64"]},
        "dimensions": {"type": "integer", "minimum": 1},
        "user": _TEXT,
    },
    "input",
    "The vectors, in the order of the texts",
    _JSON,
)

COMPLETION_DOCUMENT = _document("Completion", {**_OPTIONS, "prompt": _TEXTS}, "prompt")
