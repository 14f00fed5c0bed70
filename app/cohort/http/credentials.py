"""The credentials of an HTTP request, and the models that its caller may see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cohort.auth.authority import KEY_HEADERS, Caller, Credentials, sent_keys

VISIBLE = "cohort.visible"
"""Scope key of the models that the caller may see. None means all."""

CERTIFICATE = "cohort.certificate"
"""Scope key of the names in the connection's client certificate."""

CALLER = "cohort.caller"
"""Scope key of the caller. It is absent if callers need no key."""

_KEY_HEADERS = frozenset(name.encode() for name in KEY_HEADERS)


def keys_in(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    """Return the distinct keys in received headers, whose names are in lower case."""
    return sent_keys(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name in _KEY_HEADERS
    )


def credentials_in(scope: Mapping[str, Any]) -> Credentials:
    """Return the keys and certificate names of a request."""
    return Credentials(keys_in(scope["headers"]), scope.get(CERTIFICATE))


def certificate_names(certificate: Mapping[str, Any] | None) -> frozenset[str] | None:
    """Return the names in a certificate from `ssl.SSLSocket.getpeercert`, or None without one.

    The names are its DNS names and URIs. A certificate without these has its common name.
    https://www.rfc-editor.org/rfc/rfc9525#section-6.3 explains why it is never both.
    """
    if not certificate:
        return None
    alternative = certificate.get("subjectAltName", ())
    names = frozenset(name for kind, name in alternative if kind in {"DNS", "URI"})
    if names:
        return names
    subject = (pair for pairs in certificate.get("subject", ()) for pair in pairs)
    return frozenset(value for key, value in subject if key == "commonName")


def visible_to(scope: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the models that the caller may see. None means all."""
    models: frozenset[str] | None = scope.get(VISIBLE)
    return models


def caller_of(scope: Mapping[str, Any]) -> Caller | None:
    """Return the caller, or None if callers need no key or the request was refused."""
    caller: Caller | None = scope.get(CALLER)
    return caller


def name_of_caller(scope: Mapping[str, Any]) -> str:
    """Return the caller's name for logs, or "" if there is no caller."""
    caller = caller_of(scope)
    return "" if caller is None else caller.name
