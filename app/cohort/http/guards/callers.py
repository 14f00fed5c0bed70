"""Authentication of HTTP requests: a guard around every route, as pure ASGI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cohort.auth.authority import Authority
from cohort.errors import CohortError
from cohort.http.credentials import CALLER, VISIBLE, credentials_in
from cohort.http.errors import log_scope_refusal, response_to
from cohort.http.guards.limits import no_more_input, refuse_and_close
from cohort.http.route_path import route_path

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset(
    {
        "/",
        "/docs",
        "/health",
        "/health/live",
        "/health/ready",
        "/ping",
        "/metrics",  # which may need a separate key
        "/openapi.json",
        "/playground",
        "/playground/data/live",
        "/playground/live",
        "/v2/health/live",
        "/v2/health/ready",
    }
)
"""Paths that need no key. They show only models that the caller may see."""

OPEN_FILES = (
    "/docs/static/",
    "/playground/files/",
    "/playground/models/",
    "/playground/runtime/",
)
"""Prefixes of pages and their files. These contain no model data; a page's requests need a key."""

SMALL_BODY_BYTES = 64 * 1024
"""Bytes up to which a body is read and discarded, so that its connection stays open."""


def ends_connection(length: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if a refused request's body is too large to read and discard."""
    return length > SMALL_BODY_BYTES or any(name == b"transfer-encoding" for name, _ in headers)


class CallersOnly:
    """Pure ASGI: refuse requests without a caller, except to OPEN_PATHS, and those over a quota.

    All other paths are guarded, including those that do not exist.

    opened: Further paths that need no key; default: none.
    """

    def __init__(
        self, app: ASGIApp, authority: Authority, opened: frozenset[str] = frozenset()
    ) -> None:
        self.app = app
        self.authority = authority
        self.open_paths = OPEN_PATHS | opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = credentials_in(scope)
        path = route_path(scope)
        if path in self.open_paths or path.startswith(OPEN_FILES):
            scope[VISIBLE] = self.authority.visible(sent)
            await self.app(scope, receive, send)
            return
        try:
            caller = self.authority.caller(sent)
            counted = caller.enter()
        except CohortError as error:
            await self._refuse(error, scope, receive, send)
            return
        scope[VISIBLE], scope[CALLER] = caller.models, caller
        try:
            await self.app(scope, receive, send)
        finally:
            if counted:
                caller.leave()

    async def _refuse(self, error: CohortError, scope: Scope, receive: Receive, send: Send) -> None:
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        length = int(announced) if announced.isdigit() else SMALL_BODY_BYTES + 1
        if ends_connection(length, scope["headers"]):
            await refuse_and_close(error, scope, receive, send)
            return
        log_scope_refusal(error, scope)
        await response_to(error, scope)(scope, no_more_input, send)
