"""Inference requests that are not on the fast path, answered before FastAPI's routes.

FastAPI's work for a route (included routers, dependencies, a task for the body) costs more than the
request. FastAPI's routes for the same paths provide the OpenAPI document, and answer paths that are
written with escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.datastructures import QueryParams, URLPath
from starlette.requests import Request
from starlette.routing import BaseRoute, NoMatchFound
from starlette.routing import Match as Matched

from cohort.http.calls import Match, respond_to_call
from cohort.http.route_path import route_path
from cohort.serving import DataPlane

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

ROUTE = "cohort.route"
"""Scope key of the request's `Route`."""


class InferencePaths(BaseRoute):
    """A Starlette route for the paths of all inference APIs, written without escapes.

    plane: Answers the requests.
    paths: Each returns the route of a path and its query, or None for a path that it does not
        handle.
    """

    def __init__(self, plane: DataPlane, paths: Sequence[Match]) -> None:
        self._plane = plane
        self._paths = paths

    def matches(self, scope: Scope) -> tuple[Matched, Scope]:
        """Return a full match for a POST to one of the paths."""
        if scope["type"] == "http" and scope["method"] == "POST":
            path, query = route_path(scope), QueryParams(scope["query_string"])
            for match in self._paths:
                if (found := match(path, query)) is not None:
                    return Matched.FULL, {ROUTE: found}
        return Matched.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        request = Request(scope, receive, send)
        response = await respond_to_call(self._plane, request, scope[ROUTE])
        await response(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: object) -> URLPath:
        """Raise NoMatchFound: these paths have no names."""
        raise NoMatchFound(name, path_params)
