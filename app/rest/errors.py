"""What an error is in HTTP, in one table, on every route, whatever raised it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.errors import (
    Cancelled,
    CohortError,
    DeadlineExceeded,
    Forbidden,
    InferenceFailed,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    NotReady,
    Overloaded,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
    quoted,
)
from app.rest.calls import JSON, Encoded
from app.rest.request_ids import id_of

log = structlog.get_logger("cohort.rest")

STATUS: Mapping[type[CohortError], HTTPStatus] = {
    InvalidInput: HTTPStatus.BAD_REQUEST,
    Unauthorized: HTTPStatus.UNAUTHORIZED,
    Forbidden: HTTPStatus.FORBIDDEN,
    NotFound: HTTPStatus.NOT_FOUND,
    MethodNotAllowed: HTTPStatus.METHOD_NOT_ALLOWED,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    UnsupportedMedia: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Overloaded: HTTPStatus.TOO_MANY_REQUESTS,
    NotReady: HTTPStatus.SERVICE_UNAVAILABLE,
    Cancelled: HTTPStatus.SERVICE_UNAVAILABLE,
    DeadlineExceeded: HTTPStatus.GATEWAY_TIMEOUT,
    InferenceFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def status_of(error: CohortError) -> HTTPStatus:
    """The status of the nearest kind of error in the table; 500 for what is in none."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def body_of(error: CohortError) -> bytes:
    """`{"error": sentence, "code": name}`."""
    return orjson.dumps({"error": str(error), "code": error.code})


def headers_of(error: CohortError) -> dict[str, str]:
    """What else a client should know: when to come back, or how to authenticate."""
    if isinstance(error, Overloaded | NotReady):
        return {"retry-after": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    return {}


def encoded_error(error: CohortError) -> Encoded:
    """An error as an answer."""
    return Encoded(body_of(error), {**JSON, **headers_of(error)})


def response_to(error: CohortError, headers: Mapping[str, str] | None = None) -> Response:
    """The whole answer."""
    return Response(
        body_of(error),
        status_of(error),
        {**headers_of(error), **(headers or {})},
        media_type="application/json",
    )


def log_refusal(error: CohortError, path: str, request_id: str) -> None:
    """One line per request that was refused or failed: a client's mistake without a traceback."""
    status = status_of(error)
    known = {"code": error.code, "path": path, "request_id": request_id, **error.about}
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, NotReady | Cancelled):
        log.error("failed", error=str(error), **known, exc_info=error.__cause__ or error)
    else:
        log.info("refused", error=error.redacted, **known)


def install(app: FastAPI) -> None:
    """Answer every error in the one form, FastAPI's own included."""

    @app.exception_handler(CohortError)
    async def ours(request: Request, error: CohortError) -> Response:
        log_refusal(error, request.url.path, id_of(request.scope))
        return response_to(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return await ours(request, InvalidInput(_sentence(error)))

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        ours_is = _translated(request, error)
        log_refusal(ours_is, request.url.path, id_of(request.scope))
        return response_to(ours_is, error.headers)

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        del error  # nobody reads the answer
        return await ours(request, Cancelled("the caller left before its request was whole"))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        del request, error  # the server logs it with its traceback
        return response_to(InferenceFailed("the server failed; its log says more"))


def _sentence(error: RequestValidationError) -> str:
    parts = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        parts.append(f"{place}: {problem['msg']}")
    return "; ".join(parts) or "the request is not valid"


def _translated(request: Request, error: HTTPException) -> CohortError:
    path = quoted(request.url.path)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return NotFound(f"there is nothing at {path}; /docs shows what there is")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return MethodNotAllowed(f"{path} does not take {request.method}")
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return TooLarge(str(error.detail))
    if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InvalidInput(str(error.detail))
    return InferenceFailed(str(error.detail))
