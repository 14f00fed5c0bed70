"""Access log and audit log lines for requests that FastAPI answers."""

from __future__ import annotations

from asyncio import CancelledError
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING

from cohort.http.credentials import name_of_caller
from cohort.http.guards.request_ids import PLACE, TRACE_ID, id_of_refused
from cohort.http.route_path import route_path
from cohort.observability.access_log import CALLER_LEFT, MAX_PATH, AccessLog, Facts, shown_path
from cohort.observability.audit import AdminResult, log_admin_request

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEASE = "cohort.lease"
"""Scope key of the request's lease."""

LEFT = "cohort.left"
"""Scope key that is True if the client disconnected."""

ADMIN_PATHS = ("/admin/", "/v2/repository/models/")
"""Path prefixes of operator requests, whether or not a route exists."""


class LogLines:
    """Pure ASGI: write the access log if there is one, and the audit log for operator requests."""

    def __init__(self, app: ASGIApp, access_log: AccessLog | None = None) -> None:
        self.app = app
        self.access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        admin = route_path(scope).startswith(ADMIN_PATHS)
        if self.access_log is None and not admin:
            await self.app(scope, receive, send)
            return
        if admin:
            id_of_refused(scope)  # so that the audit line has a request id
        began, status, size = monotonic(), 0, 0

        async def watch(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except CancelledError:
            raise
        except Exception:
            status = status or HTTPStatus.INTERNAL_SERVER_ERROR  # sent by the outer error handler
            raise
        finally:
            if scope.get(LEFT):
                status = CALLER_LEFT
            status = int(status) or CALLER_LEFT
            if admin:
                _log_admin(scope, status)
            if self.access_log is not None:
                trace_id = scope.get(TRACE_ID, "")
                facts = _facts(scope, status)
                self.access_log.add((monotonic(), began, size, scope[PLACE], facts, trace_id))


def _facts(scope: Scope, status: int) -> Facts:
    method, path = scope["method"][:MAX_PATH], scope["path"][: MAX_PATH + 1]
    return Facts.of(method, path, status, scope.get(LEASE), name_of_caller(scope))


def _log_admin(scope: Scope, status: int) -> None:
    result: AdminResult = "done"
    if status == CALLER_LEFT:
        result = "left"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        result = "failed"
    elif status >= HTTPStatus.BAD_REQUEST:
        result = "refused"
    log_admin_request(
        f"{scope['method']} {shown_path(scope['path'])}",
        caller=name_of_caller(scope),
        address=(scope.get("client") or ("",))[0].removeprefix("::ffff:"),
        request_id=scope[PLACE].decode(),
        result=result,
        status=status,
    )
