"""Authorization, decided once for every adapter from the credentials of its protocol.

Callers and operators are identified by keys, tokens and client certificates (`cohort.auth`). An
adapter puts the credentials of a request into `Credentials` and asks an `Authority`. The result is
a `Caller`, whose `models` the adapter passes to the planes, or an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hmac import compare_digest
from typing import NamedTuple

from cohort.auth import EXPIRED, Caller, Identity, KeyRing
from cohort.errors import CohortError, Forbidden, NotReady, Unauthorized

__all__ = ["KEY_HEADERS", "Authority", "Caller", "Credentials", "bearer_token", "sent_keys"]

AUTHORIZATION, API_KEY = "authorization", "x-api-key"
KEY_HEADERS = frozenset({AUTHORIZATION, API_KEY})
"""The HTTP headers and gRPC metadata that carry keys; in lower case."""


class Credentials(NamedTuple):
    """The credentials of a request.

    A key takes precedence over a certificate: a request with an unknown key has no caller.

    keys: The different keys in its headers.
    certificate: The names in its connection's client certificate; None: it has no certificate.
    """

    keys: frozenset[str]
    certificate: frozenset[str] | None = None


class Authority:
    """Decides whether a request is allowed.

    keys: The keys and certificates of callers and operators.
    asks_callers: True if callers need credentials. Operators always do.
    certified: The caller of every client certificate, regardless of its names; None: `keys` decide.
    metrics_key: The key that a request for metrics needs, apart from an operator's; None: no key.
    """

    def __init__(
        self,
        keys: KeyRing,
        *,
        asks_callers: bool = False,
        certified: Caller | None = None,
        metrics_key: str | None = None,
    ) -> None:
        self._keys = keys
        self._metrics_key = None if metrics_key is None else metrics_key.encode()
        self._certified = certified
        self.asks_callers = asks_callers

    def caller(self, sent: Credentials) -> Caller:
        """Return the caller of a request with these credentials, if callers need credentials.

        Raises as `identify`.
        """
        return self.identify(sent).caller

    def identify(self, sent: Credentials) -> Identity:
        """Return the caller, and the time until which the credentials are valid.

        Raises Unauthorized for missing credentials, several keys, or an unknown key or certificate.
        Raises NotReady until the keys have been read; for a token also as `KeyRing.find`.
        """
        keys = self._keys
        try:
            identity = self._find(sent)
        except Unauthorized:
            keys.wrong += 1
            raise
        if identity is None:
            certified = not sent.keys and sent.certificate is not None
            if len(sent.keys) != 1 and not certified:
                keys.missing += 1
                only = needs(keys.kinds) if self._certified is None else NEEDS_CERTIFICATE
                raise Unauthorized(SEVERAL if sent.keys else only)
            if not keys.initialized:
                raise NotReady("the API keys cannot be read yet")
            keys.wrong += 1
            raise Unauthorized(WRONG_CERTIFICATE if certified else "the API key is wrong")
        return identity

    def expired(self) -> Unauthorized:
        """Count a request whose token has expired; return its error."""
        self._keys.wrong += 1
        return Unauthorized(EXPIRED)

    def visible(self, sent: Credentials) -> frozenset[str] | None:
        """Return the models visible to a request on a public route; None: all of them."""
        if not self.asks_callers:
            return None
        try:
            identity = self._find(sent)
        except CohortError:
            identity = None
        return _NO_MODELS if identity is None else identity.caller.models

    def check_operator(self, sent: Credentials) -> Caller:
        """Return the operator that sent the request.

        Raises Unauthorized without a token, and Forbidden if the token is not an operator's. Raises
        Forbidden for every request if the server has no operator. For a JSON Web Token it also
        raises as `KeyRing.find`.
        """
        keys = self._keys
        if not keys.has_operator:
            raise Forbidden(NO_OPERATOR)
        identity = self._find(sent)
        if len(sent.keys) != 1 and not (identity and identity.caller.admin):
            raise Unauthorized(SEVERAL if sent.keys else NEEDS_OPERATOR)
        if identity is None:
            raise Forbidden("the admin token is wrong")
        if not identity.caller.admin:
            raise Forbidden("this caller is not an admin")
        return identity.caller

    def check_metrics(self, sent: Credentials) -> None:
        """Return if a request may read the metrics.

        If a key is required, raises Unauthorized unless the request has the metrics key or an
        operator's. A refused token raises as `KeyRing.find`.
        """
        if self._metrics_key is None:
            return
        if len(sent.keys) == 1 and compare_digest(min(sent.keys).encode(), self._metrics_key):
            return
        identity = self._find(sent)
        if identity is None or not identity.caller.admin:
            if len(sent.keys) != 1:
                raise Unauthorized(SEVERAL if sent.keys else NEEDS_METRICS_KEY)
            raise Unauthorized("the metrics key is wrong")

    def _find(self, sent: Credentials) -> Identity | None:
        if sent.keys:
            return self._keys.find(*sent.keys) if len(sent.keys) == 1 else None
        if sent.certificate is None:
            return None
        caller = self._certified or self._keys.find_by_names(sent.certificate)
        return None if caller is None else Identity(caller)


_NO_MODELS: frozenset[str] = frozenset()

NO_OPERATOR = (
    "admin requests are disabled: COHORT_ADMIN_TOKEN is not set, and no entry of COHORT_API_KEYS "
    "has 'admin: true'"
)
NEEDS_OPERATOR = "this request needs the header 'Authorization: Bearer <admin token>'"
NEEDS_METRICS_KEY = "this request needs the header 'Authorization: Bearer <metrics key>'"
NEEDS_CERTIFICATE = "this request needs a client certificate"
SEVERAL = "this request has several keys; send only one"
WRONG_CERTIFICATE = "the client certificate matches no caller, or more than one"


def needs(kinds: Collection[str]) -> str:
    """Return the error text for missing credentials: the accepted kinds of credentials."""
    wanted = [sentence for kind, sentence in _BY_KIND.items() if kind in kinds]
    return f"this request needs {' or '.join(wanted or [_BY_KIND['sha256']])}"


_BY_KIND = {
    "sha256": "an API key (the header 'Authorization: Bearer <key>' or 'X-Api-Key: <key>')",
    "subject": "a token (the header 'Authorization: Bearer <token>')",
    "certificate": "a client certificate",
}


def sent_keys(pairs: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the different keys in a request's headers; header names are in lower case.

    Requests with two keys are refused: a proxy in front of the server may have checked the other
        key.
    """
    keys = set()
    for name, value in pairs:
        if name == AUTHORIZATION:
            key = bearer_token(value)
        elif name == API_KEY:
            key = value.strip() or None
        else:
            continue
        if key is not None:
            keys.add(key)
    return frozenset(keys)


def bearer_token(authorization: str | None) -> str | None:
    """Return the token of `Bearer <token>`, in any case of the first word; None without one.

    https://www.rfc-editor.org/rfc/rfc6750#section-2.1
    """
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
