"""The credentials that an HTTP request carries, and what its caller may see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cohort.auth.authority import KEY_HEADERS, Caller, Credentials, sent_keys

VISIBLE = "cohort.visible"
"""Where a scope keeps the models that its caller may see; None: all of them."""

CERTIFICATE = "cohort.certificate"
"""Where a scope keeps the names in the client certificate of its connection."""

CALLER = "cohort.caller"
"""Where it keeps its caller; nothing where callers need no key."""

_KEY_HEADERS = frozenset(name.encode() for name in KEY_HEADERS)


def keys_in(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    """The different keys in headers as they were received, with names in lower case."""
    return sent_keys(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name in _KEY_HEADERS
    )


def credentials_in(scope: Mapping[str, Any]) -> Credentials:
    """What the request of a scope carries to say whose it is."""
    return Credentials(keys_in(scope["headers"]), scope.get(CERTIFICATE))


def certificate_names(certificate: Mapping[str, Any] | None) -> frozenset[str] | None:
    """The names in a certificate as `ssl.SSLSocket.getpeercert` gives it; None where there is none.

    They are its DNS names and URIs, or the common name of one that has neither.
    https://www.rfc-editor.org/rfc/rfc9525#section-6.3 has why not both.
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
    """The models that the caller of a request may see; None: all of them."""
    models: frozenset[str] | None = scope.get(VISIBLE)
    return models


def caller_of(scope: Mapping[str, Any]) -> Caller | None:
    """The caller of a request; None where callers need no key, or it was refused."""
    caller: Caller | None = scope.get(CALLER)
    return caller


def name_of_caller(scope: Mapping[str, Any]) -> str:
    """Its name, for the logs; "" for none."""
    caller = caller_of(scope)
    return "" if caller is None else caller.name
