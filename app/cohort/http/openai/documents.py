"""OpenAI's routes in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from cohort.http.predict.routes import ErrorBody

_TEXT = {"type": "string"}
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


def _document(title: str, own: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Return how FastAPI describes a route whose body has these keys."""
    return {
        "responses": {
            200: {
                "description": "The answer; with 'stream', server-sent events that end with [DONE]",
                "content": {
                    "application/json": {"schema": {"type": "object"}},
                    "text/event-stream": {"schema": _TEXT},
                },
            },
            **{status: {"model": ErrorBody} for status in (400, 404, 413, 415, 429, 500, 503, 504)},
        },
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "title": title,
                            "type": "object",
                            "properties": {**_OPTIONS, **own},
                            "required": required,
                        }
                    }
                },
            }
        },
    }


CHAT_DOCUMENT = _document(
    "Chat",
    {
        "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
        "tools": {"type": "array", "items": {"type": "object"}},
    },
    ["messages"],
)

EMBEDDINGS_DOCUMENT: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The vectors, in the order of the texts",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        **{status: {"model": ErrorBody} for status in (400, 404, 413, 415, 429, 500, 503, 504)},
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "title": "Embeddings",
                        "type": "object",
                        "properties": {
                            "model": _TEXT,
                            "input": {
                                "oneOf": [_TEXT, {"type": "array", "items": {}, "minItems": 1}]
                            },
                            "encoding_format": {"enum": ["float", "base64"]},
                            "dimensions": {"type": "integer", "minimum": 1},
                            "user": _TEXT,
                        },
                        "required": ["input"],
                    }
                }
            },
        }
    },
}

COMPLETION_DOCUMENT = _document(
    "Completion",
    {"prompt": {"oneOf": [_TEXT, {"type": "array", "items": {}, "minItems": 1}]}},
    ["prompt"],
)
