"""Pages of other origins: Starlette's CORSMiddleware with this server's methods and headers.

Keys are sent in headers, which such a page may set for any allowed origin. A browser sends a client
certificate automatically, so only named origins may send credentials. With `*`, any page that a
user visits could act as that user.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from cohort.errors import Forbidden, quoted
from cohort.http.errors import response_to
from cohort.http.guards.heads import ANY
from cohort.http.methods import METHODS

EXPOSED = (
    "Inference-Header-Content-Length",
    "Retry-After",
    "WWW-Authenticate",
    "X-Model-Version",
    "X-Request-Id",
    "X-Variant",
)
"""Headers that such a page may read, in addition to those that are always readable."""

MAX_AGE = 600
"""Seconds for which a browser caches the answer to a preflight request."""


class OtherOrigins(CORSMiddleware):
    """Lets pages of `origins` call this server. ANY allows all origins."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=["*"],
            allow_credentials=ANY not in origins,
            expose_headers=EXPOSED,
            max_age=MAX_AGE,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a preflight request. A refusal has the form of every error."""
        response = super().preflight_response(_without_network(request_headers))
        if response.status_code == HTTPStatus.OK:
            return response
        origin = quoted(request_headers["origin"])
        refusal = Forbidden(f"pages of {origin} may not send this request to this server")
        return response_to(refusal, {"path": ""}, {"vary": response.headers["vary"]})


def _without_network(headers: Headers) -> Headers:
    """Return the headers without the Private Network Access request.

    The server does not answer it; the browser decides if a public page may call a private network.
    """
    asked = b"access-control-request-private-network"
    return Headers(raw=[one for one in headers.raw if one[0] != asked])
