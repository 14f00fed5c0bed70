"""The path of a request inside this application, which may be mounted under a prefix."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def route_path(scope: MutableMapping[str, Any]) -> str:
    """Return the path of a scope without the application's prefix."""
    path: str = scope["path"]
    return path.removeprefix(root_of(scope))


def root_of(scope: MutableMapping[str, Any]) -> str:
    """Return the application's prefix as far as it is known, or ""."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def way_up(scope: MutableMapping[str, Any]) -> str:
    """Return the relative path (`.` or `..`) from the browser's path to the application's root.

    It is correct for any prefix that a proxy removes.
    """
    seen: bytes = scope.get("raw_path") or scope["path"].encode()
    within = seen.removeprefix(root_of(scope).encode())
    return "/".join([".."] * (within.count(b"/") - 1)) or "."


def within_root(path: str, root: str) -> str:
    """Return `path` without the prefix `root`, which a proxy may keep or remove."""
    return path[len(root) :] or "/" if (path + "/").startswith(root + "/") else path


class UnderRoot:
    """Pure ASGI: answer each path with and without the prefix `root`."""

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
