"""The methods of a path: HEAD for every GET, and all of them in a 405."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.routing import BaseRoute, Match

METHODS = ("GET", "HEAD", "POST")
"""All methods that any route accepts, except for DELETE of SageMaker's models."""


class Routes(APIRouter):
    """A router that also answers HEAD for every GET. The server omits the body.

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
    """Return the methods that any route accepts at the path of a request."""
    return [
        method
        for method in (*METHODS, "DELETE")
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
