"""What all connections of a process share: addresses, limits, counts and the watch over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.data_plane import DataPlane
from app.rest.calls import Route

MOST_ROUTES = 1024
"""Addresses that are remembered; callers make them up, so at some point they are forgotten."""
LONGEST_REMEMBERED = 512

Match = Callable[[str], Route | None]


class Watched(Protocol):
    """A connection, as the sweep sees it."""

    def close_if_idle(self, now: float, /) -> None: ...


@dataclass
class Hot:
    """What all connections of a process share. `answered` counts what went the fast way.

    `keep_alive` is how long, in seconds, a connection may do nothing.
    """

    plane: DataPlane
    matches: Sequence[Match]
    max_body: int
    keep_alive: float
    draining: Callable[[], bool] = lambda: False
    answered: int = 0
    _watching: bool = False
    _routes: dict[bytes, Route] = field(default_factory=dict)
    _defaults: tuple[object, bytes] = (None, b"")

    def route(self, url: bytes) -> Route | None:
        """The route of an address that goes the fast way; None for all others."""
        return self._routes.get(url) or self._find(url)

    def _find(self, url: bytes) -> Route | None:
        path = url.decode("latin-1")
        route = next((found for match in self.matches if (found := match(path))), None)
        if route is not None and len(url) <= LONGEST_REMEMBERED:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            self._routes[url] = route
        return route

    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """uvicorn's own headers, put together anew only when it has new ones (once a second)."""
        if self._defaults[0] is not headers:
            lines = [name + b": " + value + b"\r\n" for name, value in headers]
            self._defaults = (headers, b"".join(lines))
        return self._defaults[1]

    def watch(self, connections: Iterable[Watched], loop: asyncio.AbstractEventLoop) -> None:
        """Have an eye on idle connections: one timer for all, while there are any."""
        if not self._watching:
            self._watching = True
            loop.call_later(self._period, self._sweep, connections, loop)

    @property
    def _period(self) -> float:
        return min(max(self.keep_alive / 4, 0.05), 5.0)

    def _sweep(self, connections: Iterable[Watched], loop: asyncio.AbstractEventLoop) -> None:
        self._watching = False
        now = loop.time()
        for connection in list(connections):
            self.watch(connections, loop)
            connection.close_if_idle(now)
