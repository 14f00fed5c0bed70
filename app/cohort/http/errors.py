"""The status and body of each error, in one table for all routes."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import orjson
import structlog

from cohort.errors import (
    AlreadyLoaded,
    Cancelled,
    CohortError,
    DeadlineExceeded,
    Forbidden,
    InferenceFailed,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    NotReady,
    OutOfMemory,
    Overloaded,
    SequenceEnded,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
)
from cohort.http.calls import JSON, Encoded
from cohort.http.guards.request_ids import SPAN, TRACE_ID, id_of_refused
from cohort.http.openai.error_body import has_openai_form, openai_error
from cohort.http.route_path import route_path
from cohort.observability.access_log import shown_path
from cohort.observability.refusals import log_refusal

if TYPE_CHECKING:
    from starlette.responses import Response

log = structlog.get_logger("cohort.rest")

HTTP_STATUS: Mapping[type[CohortError], HTTPStatus] = {
    InvalidInput: HTTPStatus.BAD_REQUEST,
    Unauthorized: HTTPStatus.UNAUTHORIZED,
    Forbidden: HTTPStatus.FORBIDDEN,
    NotFound: HTTPStatus.NOT_FOUND,
    MethodNotAllowed: HTTPStatus.METHOD_NOT_ALLOWED,
    SequenceEnded: HTTPStatus.CONFLICT,
    AlreadyLoaded: HTTPStatus.CONFLICT,
    OutOfMemory: HTTPStatus.INSUFFICIENT_STORAGE,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    UnsupportedMedia: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Overloaded: HTTPStatus.TOO_MANY_REQUESTS,
    NotReady: HTTPStatus.SERVICE_UNAVAILABLE,
    Cancelled: HTTPStatus.SERVICE_UNAVAILABLE,
    DeadlineExceeded: HTTPStatus.GATEWAY_TIMEOUT,
    InferenceFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def http_status(error: CohortError) -> HTTPStatus:
    """Return the status of the error's nearest class in the table, or 500 without one."""
    for kind in type(error).__mro__:
        if kind in HTTP_STATUS:
            return HTTP_STATUS[kind]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def body_of(error: CohortError) -> bytes:
    """Return `{"error": sentence, "code": name}`."""
    return orjson.dumps({"error": str(error), "code": error.code})


def headers_of(error: CohortError) -> dict[str, str]:
    """Return the headers that state when to retry, how to authenticate, or the allowed methods."""
    if isinstance(error, Overloaded | NotReady) and error.retry_after is not None:
        return {"retry-after": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, MethodNotAllowed):
        return {"allow": error.allow}
    return {}


_encoded: WeakKeyDictionary[CohortError, Encoded] = WeakKeyDictionary()


def encoded_refusal(error: CohortError, path: str) -> Encoded:
    """Return the error of a request to `path` that no route has read, as an encoded response."""
    if not has_openai_form(path, ()):
        return encoded_error(error)
    return Encoded(openai_error(error), {**JSON, **headers_of(error)})


def encoded_error(error: CohortError) -> Encoded:
    """Return an error as an encoded response. An error shared by many requests is encoded once."""
    found = _encoded.get(error)
    if found is None:
        found = _encoded[error] = Encoded(body_of(error), {**JSON, **headers_of(error)})
    return found


def response_to(
    error: CohortError,
    scope: MutableMapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an error as a Starlette response, in the form of the API that `scope` asks."""
    from starlette.responses import Response  # noqa: PLC0415 - the fast path starts without it

    openai = has_openai_form(route_path(scope), scope.get("headers", ()))
    return Response(
        (openai_error if openai else body_of)(error),
        http_status(error),
        {**headers_of(error), **(headers or {})},
        media_type="application/json",
    )


def log_http_refusal(
    error: CohortError, path: str | bytes, request_id: str, trace_id: str = ""
) -> None:
    """Log one line for a request to `path` that was refused or failed.

    trace_id: Its trace; default "": no trace.
    """
    log_refusal(log, error, request_id, trace_id, path=shown_path(path))


def log_scope_refusal(error: CohortError, scope: MutableMapping[str, Any]) -> None:
    """Log one line for a request that FastAPI or its middleware refused, or that failed.

    Its span gets the name of the error.
    """
    if (span := scope.get(SPAN)) is not None:
        span.set({"error.type": error.code})
    log_http_refusal(error, scope["path"], id_of_refused(scope), scope.get(TRACE_ID, ""))
