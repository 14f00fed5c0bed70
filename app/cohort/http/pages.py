"""Pages for browsers, and the headers that protect them.

A page loads files from this server only, and no other page can frame it. Its one inline script is
allowed by its digest, so injected scripts do not run. https://www.w3.org/TR/CSP3/
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache
from hashlib import sha256
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cohort.http.credentials import visible_to
from cohort.http.json_response import json_response
from cohort.http.methods import Routes
from cohort.http.openapi.document import RELATIVE
from cohort.http.route_path import root_of, way_up
from cohort.open_inference import server_metadata
from cohort.operating import ControlPlane

DOCS = "/docs"
STATIC = "/docs/static"

MAX_UNFOLDED = 20
"""Versions up to which the page lists all paths. Beyond that it lists models, which is faster."""

POLICY = "default-src 'none'; frame-ancestors 'none'"
"""Policy of responses that are not pages: load nothing, run nothing."""


class SafeInBrowsers:
    """Pure ASGI: set nosniff and a restrictive CSP on every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def add_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                headers.setdefault("content-security-policy", POLICY)
            await send(message)

        await self.app(scope, receive, add_headers)


def page_policy(html: str) -> str:
    """Return the Content-Security-Policy of a Swagger UI page, which allows its inline scripts."""
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digests = [b64encode(sha256(one.encode()).digest()).decode() for one in scripts]
    allowed = " ".join(["'self'", *(f"'sha256-{one}'" for one in digests)])
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'self'; "
        "img-src 'self' data:; font-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def install_docs(app: FastAPI, plane: ControlPlane) -> None:
    """Serve Swagger UI for `app`. Its scripts and styles are served at STATIC."""

    @lru_cache(8)
    def page(up: str, expansion: str) -> tuple[bytes, str]:
        response = get_swagger_ui_html(
            openapi_url=f"{up}{app.openapi_url}?{RELATIVE}",
            title=f"{app.title} - Swagger UI",
            swagger_js_url=f"{up}{STATIC}/swagger-ui-bundle.js",
            swagger_css_url=f"{up}{STATIC}/swagger-ui.css",
            swagger_favicon_url="data:,",  # no favicon instead of FastAPI's
            swagger_ui_parameters={"docExpansion": expansion, "tryItOutEnabled": True},
        )
        html = bytes(response.body)
        return html, page_policy(html.decode())

    async def show(request: Request) -> Response:
        versions = len(plane.limited_to(visible_to(request.scope)).served())
        expansion = "list" if versions <= MAX_UNFOLDED else "none"
        html, policy = page(way_up(request.scope), expansion)
        return HTMLResponse(html, headers={"content-security-policy": policy})

    app.router.routes.append(Route(DOCS, show))


def front_router(plane: ControlPlane, page: str) -> Routes:
    """Return the route `/`: liveness for programs, a redirect to `page` for browsers."""
    routes = Routes(tags=["health"])

    @routes.get(
        "/",
        summary="Liveness; browsers are redirected to the page",
        response_model=dict[str, Any],
        responses={
            307: {"description": "Redirect to the page for clients that accept HTML", "content": {}}
        },
    )
    async def front(request: Request) -> Response:
        """503 after a fault that only a restart fixes, like `/health/live`."""
        vary = {"vary": "accept"}
        if accepts_html(request.headers.get("accept", "")):
            return RedirectResponse((root_of(request.scope) or ".") + page, headers=vary)
        plane.liveness().check()
        about = server_metadata()
        return json_response(
            {"status": "alive", "name": about["name"], "version": about["version"]}, vary
        )

    return routes


def accepts_html(accept: str) -> bool:
    """Return True if an Accept header names HTML. Browsers name it; programs send `*/*`."""
    for part in accept.lower().split(","):
        media, *parameters = (one.strip() for one in part.split(";"))
        if media == "text/html":
            return not any(re.fullmatch(r"q\s*=\s*0(\.0*)?", one) for one in parameters)
    return False
