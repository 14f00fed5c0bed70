"""Errors in OpenAI's form, on OpenAI's paths.

https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from cohort.errors import (
    CohortError,
    DeadlineExceeded,
    Forbidden,
    InferenceFailed,
    InvalidInput,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    NotReady,
    Overloaded,
    Unauthorized,
)

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
MODELS = "/v1/models"

NOT_SERVED = frozenset({"/v1/responses", "/chat/completions"})
"""Paths of another API of OpenAI, and of its clients with an address without /v1."""

PATHS = frozenset({CHAT, COMPLETIONS, EMBEDDINGS, MODELS}) | NOT_SERVED
"""Paths whose errors have OpenAI's form.

On other paths, such as a model's, which is TensorFlow Serving's as well, only OpenAI's clients get
this form.
"""

CLIENT_HEADER = b"x-stainless-lang"
"""A header that all of OpenAI's clients send."""

INVALID = "invalid_request_error"


class _Kind(NamedTuple):
    """The `type` and the `code` of an error in OpenAI's form."""

    type: str
    code: str | None = None


_KINDS: Mapping[type[CohortError], _Kind] = {
    InvalidInput: _Kind(INVALID),
    Unauthorized: _Kind(INVALID, "invalid_api_key"),
    Forbidden: _Kind("permission_error", "forbidden"),
    ModelNotFound: _Kind(INVALID, "model_not_found"),
    NotFound: _Kind(INVALID, "not_found"),
    MethodNotAllowed: _Kind(INVALID, "method_not_allowed"),
    Overloaded: _Kind("rate_limit_error", "rate_limit_exceeded"),
    NotReady: _Kind("service_unavailable_error", "service_unavailable"),
    DeadlineExceeded: _Kind("timeout_error", "timeout"),
    InferenceFailed: _Kind("server_error", "inference_failed"),
}

_UNKNOWN = _Kind("server_error")


def has_openai_form(path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if errors of a request to `path` have OpenAI's form."""
    return path in PATHS or any(name == CLIENT_HEADER for name, _ in headers)


def error_object(error: CohortError) -> dict[str, Any]:
    """Return an error as `{"error": {"message": …, "type": …, "param": …, "code": …}}`."""
    kind = next((_KINDS[one] for one in type(error).__mro__ if one in _KINDS), _UNKNOWN)
    parameter = code = None
    if isinstance(error, InvalidInput):
        parameter = error.parameter or None
        code = error.reason or (parameter and "invalid_value")
    elif isinstance(error, ModelNotFound):
        parameter = "model"
    return {
        "error": {
            "message": str(error),
            "type": kind.type,
            "param": parameter,
            "code": code or kind.code,
        }
    }


def openai_error(error: CohortError) -> bytes:
    """Return the body of an error in OpenAI's form."""
    return orjson.dumps(error_object(error))


def openai_error_event(error: CohortError) -> bytes:
    """Return the event that ends a stream with an error."""
    return b"data: %b\n\n" % openai_error(error)
