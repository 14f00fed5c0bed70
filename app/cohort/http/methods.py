"""The methods that a path takes: HEAD wherever GET is, and all of them named in a 405."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.routing import BaseRoute, Match

METHODS = ("GET", "HEAD", "POST")
"""All that any route takes."""


class Routes(APIRouter):
    """A router whose routes answer HEAD as GET, which the server sends without the body.

    https://www.rfc-editor.org/rfc/rfc9110#name-head
    """

    def add_api_route(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        methods: Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        """Add a route for `methods`; default: GET."""
        taken = {"GET"} if methods is None else set(methods)
        taken |= {"HEAD"} if "GET" in taken else set()
        super().add_api_route(path, endpoint, methods=sorted(taken), **options)


def methods_at(routes: Sequence[BaseRoute], scope: MutableMapping[str, Any]) -> list[str]:
    """The methods that the path of a request takes, of all routes that match it."""
    return [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
