"""Handlers that give FastAPI's errors the same form as all others."""

from __future__ import annotations

import re
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from cohort.errors import (
    Cancelled,
    CohortError,
    InferenceFailed,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    quoted,
)
from cohort.http.errors import log_scope_refusal, response_to
from cohort.http.guards.log_lines import LEFT
from cohort.http.methods import methods_at
from cohort.http.route_path import route_path
from cohort.observability.refusals import known_error


def install_error_handlers(app: FastAPI) -> None:
    """Give every error, including FastAPI's, the same form."""

    @app.exception_handler(CohortError)
    async def refuse(request: Request, error: CohortError) -> Response:
        request.scope[LEFT] = isinstance(error, Cancelled)
        log_scope_refusal(error, request.scope)
        return response_to(error, request.scope)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return await refuse(request, InvalidInput(_sentence(error)))

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        translated = _translated(request, error)
        log_scope_refusal(translated, request.scope)
        return response_to(translated, request.scope)

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        del error  # the client is gone
        return await refuse(request, Cancelled("the client disconnected during its request"))


async def respond_to_bug(request: Request, error: Exception) -> Response:
    """Answer for Starlette's ServerErrorMiddleware. The server logs the traceback."""
    return response_to(known_error(error), request.scope)


def _sentence(error: RequestValidationError) -> str:
    parts = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        parts.append(f"{place}: {problem['msg']}")
    return "; ".join(parts) or "the request is not valid"


# Paths of other servers and common mistakes, with the route that was probably meant.
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
        (r"/v1/responses|.*/chat/completions?", "POST /v1/chat/completions"),
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
        return NotFound(f"{path} not found; {_meant(route_path(request.scope))}")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        taken = ", ".join(methods_at(request.app.routes, request.scope))
        taken = taken or "GET, HEAD"  # static files, whose path is matched by its beginning
        sentence = f"{path} accepts {taken}, not {request.method}"
        if request.method == "OPTIONS" and "origin" in request.headers:
            sentence += "; COHORT_CORS_ORIGINS lists the origins whose pages may call it"
        return MethodNotAllowed(sentence, allow=taken)
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return TooLarge(str(error.detail))
    if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InvalidInput(str(error.detail))
    return InferenceFailed(str(error.detail))
