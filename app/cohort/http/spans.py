"""The SERVER spans of HTTP requests, with the attributes of OpenTelemetry's conventions.

https://opentelemetry.io/docs/specs/semconv/http/http-spans/#http-server
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from cohort.http.guards.heads import HEALTH_PATHS
from cohort.http.guards.log_lines import LEFT
from cohort.http.guards.request_ids import SPAN, TRACE_ID
from cohort.http.route_path import route_path, within_root
from cohort.observability.access_log import CALLER_LEFT, shown_path
from cohort.observability.tracing import RequestSpan, Tracer, trace_id_in, traceparent_in

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNTRACED = frozenset({"/metrics", *(path.decode() for path in HEALTH_PATHS)})
"""Paths that orchestrators and monitoring ask for every few seconds."""


def http_attributes(method: str, target: bytes | str) -> Mapping[str, str | int]:
    """Return the attributes of a request that begins."""
    return {"http.request.method": method or "_OTHER", "url.path": shown_path(target)}


def end_http(
    span: RequestSpan,
    method: str,
    status: int,
    target: bytes | str,
    model: str | None = None,
    version: str | None = None,
    root: str = "",
) -> None:
    """End the span of a request to a path that may contain a model, a version and a prefix."""
    path = within_root(shown_path(target), root)
    if model is not None:
        span.set({"cohort.model": model})
        path = path.replace(f"/models/{model}", "/models/{model}", 1)
    if version is not None:
        path = path.replace(f"/versions/{version}", "/versions/{version}", 1)
    end_at_route(span, method, status, path)


def end_at_route(span: RequestSpan, method: str, status: int, route: str) -> None:
    """End the span of a request; `route` is the pattern of its path, "" if there is none."""
    span.set({"http.response.status_code": status})
    if route:
        span.set({"http.route": route})
    failed = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    span.end(f"{method} {route}" if route else method, failed=failed)


class Traces:
    """Pure ASGI: trace each request that FastAPI answers, except to UNTRACED paths."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self.app = app
        self.tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) in UNTRACED:
            await self.app(scope, receive, send)
            return
        method, headers = scope["method"], scope["headers"]
        traceparent, span = traceparent_in(headers), None
        if self.tracer.may_sample(traceparent):
            span = self.tracer.begin(method, headers, http_attributes(method, scope["path"]))
        scope[SPAN] = span
        if span is None:
            scope[TRACE_ID] = trace_id_in(traceparent)
            await self.app(scope, receive, send)
            return
        scope[TRACE_ID] = span.trace_id
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            if scope.get(LEFT):
                status = CALLER_LEFT
            _end(span, scope, status or HTTPStatus.INTERNAL_SERVER_ERROR)


def _end(span: RequestSpan, scope: Scope, status: int) -> None:
    route, method = scope.get("route"), scope["method"]
    if (inference := scope.get("cohort.route")) is not None:
        end_http(span, method, status, route_path(scope), inference.model, inference.version)
    else:
        end_at_route(span, method, status, getattr(route, "path_format", ""))
