"""The status and the body of each error, in one table, for every route."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from weakref import WeakKeyDictionary

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.access_log import shown_path
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
from app.refusals import known_error, log_refusal
from app.rest.calls import JSON, Encoded
from app.rest.log_lines import LEFT
from app.rest.methods import methods_at
from app.rest.request_ids import id_of_refused

log = structlog.get_logger("cohort.rest")

HTTP_STATUS: Mapping[type[CohortError], HTTPStatus] = {
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


def http_status(error: CohortError) -> HTTPStatus:
    """The status of the nearest class of the error in the table; 500 if there is none."""
    for kind in type(error).__mro__:
        if kind in HTTP_STATUS:
            return HTTP_STATUS[kind]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def body_of(error: CohortError) -> bytes:
    """`{"error": sentence, "code": name}`."""
    return orjson.dumps({"error": str(error), "code": error.code})


def headers_of(error: CohortError) -> dict[str, str]:
    """Headers that say when to retry, how to authenticate, or which methods there are."""
    if isinstance(error, Overloaded | NotReady) and error.retry_after is not None:
        return {"retry-after": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, MethodNotAllowed):
        return {"allow": error.allow}
    return {}


_encoded: WeakKeyDictionary[CohortError, Encoded] = WeakKeyDictionary()


def encoded_error(error: CohortError) -> Encoded:
    """An error as an encoded response. One that refuses a group of requests is encoded once."""
    found = _encoded.get(error)
    if found is None:
        found = _encoded[error] = Encoded(body_of(error), {**JSON, **headers_of(error)})
    return found


def response_to(error: CohortError, headers: Mapping[str, str] | None = None) -> Response:
    """An error as a FastAPI response."""
    return Response(
        body_of(error),
        http_status(error),
        {**headers_of(error), **(headers or {})},
        media_type="application/json",
    )


def log_http_refusal(error: CohortError, path: str | bytes, request_id: str) -> None:
    """One line for a request to `path` that was refused or failed."""
    log_refusal(log, error, request_id, path=shown_path(path))


def install_error_handlers(app: FastAPI) -> None:
    """Give every error the one form, FastAPI's own included."""

    @app.exception_handler(CohortError)
    async def refuse(request: Request, error: CohortError) -> Response:
        request.scope[LEFT] = isinstance(error, Cancelled)
        log_http_refusal(error, request.scope["path"], id_of_refused(request.scope))
        return response_to(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return await refuse(request, InvalidInput(_sentence(error)))

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        translated = _translated(request, error)
        log_http_refusal(translated, request.scope["path"], id_of_refused(request.scope))
        return response_to(translated)

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        del error  # nobody reads the response
        return await refuse(request, Cancelled("the caller left before its request was whole"))


async def respond_to_bug(request: Request, error: Exception) -> Response:
    """What Starlette's ServerErrorMiddleware answers; the server logs it with its traceback."""
    del request
    return response_to(known_error(error))


def _sentence(error: RequestValidationError) -> str:
    parts = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        parts.append(f"{place}: {problem['msg']}")
    return "; ".join(parts) or "the request is not valid"


# Paths of other servers, and slips, with the route that was probably meant.
_PATHS = tuple(
    (re.compile(pattern), meant)
    for pattern, meant in (
        (r"/v1/models/[^/]+/predict", "POST /v1/models/{model}:predict"),
        (r"/v2/models/[^/]+([:/]predict|:infer)", "POST /v2/models/{model}/infer"),
        (
            r"/(predict|predictions|infer)/[^/]+|/models/[^/]+(/infer|/[0-9]+/predict)"
            r"|/[^/]+/(predict|infer)",
            "POST /models/{model}/predict",
        ),
        (r"/(healthz|livez|live|health/(liveness|alive))", "GET /health/live"),
        (r"/(readyz|ready|health/readiness|v2/health)", "GET /health/ready"),
    )
)


def _meant(path: str) -> str:
    found = [meant for pattern, meant in _PATHS if pattern.fullmatch(path)]
    return f"did you mean {found[0]}?" if found else "/docs lists the routes"


def _translated(request: Request, error: HTTPException) -> CohortError:
    path = quoted(request.scope["path"])
    if error.status_code == HTTPStatus.NOT_FOUND:
        return NotFound(f"{path} not found; {_meant(request.scope['path'])}")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        taken = ", ".join(methods_at(request.app.routes, request.scope))
        taken = taken or "GET, HEAD"  # of files, whose path is read from where they begin
        said = f"{path} takes {taken}, not {request.method}"
        if request.method == "OPTIONS" and "origin" in request.headers:
            said += "; COHORT_CORS_ORIGINS names the pages of other origins that may call"
        return MethodNotAllowed(said, allow=taken)
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return TooLarge(str(error.detail))
    if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InvalidInput(str(error.detail))
    return InferenceFailed(str(error.detail))
