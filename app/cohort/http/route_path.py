"""The path of a request within this application, which may be mounted under a prefix."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any


def route_path(scope: MutableMapping[str, Any]) -> str:
    """The path of a scope without the prefix that is in front of its application."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
