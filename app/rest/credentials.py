"""The keys that an HTTP request carries, and what its caller may see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.auth import KEY_HEADERS, sent_keys

VISIBLE = "cohort.visible"
"""Where a scope keeps the models that its caller may see; None: all of them."""

_KEY_HEADERS = frozenset(name.encode() for name in KEY_HEADERS)


def keys_in(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    """The different keys in headers as they were received, with names in lower case."""
    return sent_keys(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name in _KEY_HEADERS
    )


def visible_to(scope: Mapping[str, Any]) -> frozenset[str] | None:
    """The models that the caller of a request may see; None: all of them."""
    models: frozenset[str] | None = scope.get(VISIBLE)
    return models
