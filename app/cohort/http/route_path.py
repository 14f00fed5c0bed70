"""The path of a request within this application, which may be mounted under a prefix."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def route_path(scope: MutableMapping[str, Any]) -> str:
    """The path of a scope without the prefix that is in front of its application."""
    path: str = scope["path"]
    return path.removeprefix(root_of(scope))


def root_of(scope: MutableMapping[str, Any]) -> str:
    """The prefix in front of the application, as far as it is known; "" for none."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def way_up(scope: MutableMapping[str, Any]) -> str:
    """The way from the path that a browser sees to where the application begins: `.` or `..`.

    It is right whatever prefix a proxy takes off.
    """
    seen: bytes = scope.get("raw_path") or scope["path"].encode()
    within = seen.removeprefix(root_of(scope).encode())
    return "/".join([".."] * (within.count(b"/") - 1)) or "."


def within_root(path: str, root: str) -> str:
    """A path without the prefix that a proxy may have kept, or taken off, as it may."""
    return path[len(root) :] or "/" if (path + "/").startswith(root + "/") else path


class UnderRoot:
    """Pure ASGI: answer at each path with the prefix `root` and without."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self.app = app
        self.root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope.get("root_path"):
            raw = scope.get("raw_path") or scope["path"].encode()
            plain = within_root(raw.decode("latin-1"), self.root).encode("latin-1")
            scope["root_path"], scope["raw_path"] = self.root, self.root.encode() + plain
            scope["path"] = self.root + within_root(scope["path"], self.root)
        await self.app(scope, receive, send)
