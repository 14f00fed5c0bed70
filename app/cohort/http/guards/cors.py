"""Which pages of other origins may call: Starlette's CORSMiddleware, with what this server has.

Keys are sent in headers, which such a page may set for any origin that is allowed. What a browser
sends of its own accord, a client certificate, comes with the requests of named origins only: with
`*` any page that somebody visits would act in their name.
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
"""What such a page may read of a response, beside its body and the headers of every one."""

MAX_AGE = 600
"""Seconds for which a browser keeps what it was told before a request."""


class OtherOrigins(CORSMiddleware):
    """Lets pages of `origins` call, of which ANY stands for all."""

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
        """What a browser asks for before a request; a refusal has the form of every error."""
        response = super().preflight_response(_without_network(request_headers))
        if response.status_code == HTTPStatus.OK:
            return response
        origin = quoted(request_headers["origin"])
        refusal = Forbidden(f"pages of {origin} may not send such a request to this server")
        return response_to(refusal, {"vary": response.headers["vary"]})


def _without_network(headers: Headers) -> Headers:
    """The headers without a browser's question whether a page of the internet may call a private
    network: it is not answered, and the browser decides.
    """
    asked = b"access-control-request-private-network"
    return Headers(raw=[one for one in headers.raw if one[0] != asked])
