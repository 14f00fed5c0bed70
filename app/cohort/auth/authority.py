"""Who may do what, decided once for every adapter from what its protocol carries.

Callers and operators are known by keys, tokens and client certificates (`cohort.auth`). An adapter
reads what a request carries into `Credentials` and asks an `Authority`; what it gets is a `Caller`,
whose `models` it passes to the planes, or an error.
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
"""The headers over HTTP, and the metadata over gRPC, that carry keys; in lower case."""


class Credentials(NamedTuple):
    """What a request carries to say whose it is. A key is worth more than a certificate: whoever
    sends one is the caller of that key, or nobody.

    keys: The different keys in its headers.
    certificate: The names in its connection's client certificate; None: it has none.
    """

    keys: frozenset[str]
    certificate: frozenset[str] | None = None


class Authority:
    """Decides whether a request may do what it asks for.

    keys: The keys and certificates of callers and operators.
    asks_callers: Whether callers need one of them. Operators always do.
    certified: Whoever has a client certificate, whatever names are in it; None: `keys` tell.
    metrics_key: What a request for metrics carries, unless it is an operator's; None: nothing.
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
        """The caller of a request that carries these credentials, where callers need some.

        Raises what `identify` does.
        """
        return self.identify(sent).caller

    def identify(self, sent: Credentials) -> Identity:
        """The same, and until when it is known.

        Raises Unauthorized without any credentials, with several keys, or with what is nobody's,
        and NotReady until the keys have been read; for a token also what `KeyRing.find` raises.
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
        """Count a request whose token was good before; the error to answer it with."""
        self._keys.wrong += 1
        return Unauthorized(EXPIRED)

    def visible(self, sent: Credentials) -> frozenset[str] | None:
        """The models that a request may see on a route that is open to all; None: all of them."""
        if not self.asks_callers:
            return None
        try:
            identity = self._find(sent)
        except CohortError:
            identity = None
        return _NO_MODELS if identity is None else identity.caller.models

    def check_operator(self, sent: Credentials) -> Caller:
        """The operator whose request this is.

        Raises Unauthorized without a token, Forbidden with one that is no operator's, and Forbidden
        for every request where the server knows of no operator; about a JSON Web Token what
        `KeyRing.find` does.
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

        Raises Unauthorized unless it carries the key for metrics or an operator's, where one is
        needed. A token that is refused raises what `KeyRing.find` does.
        """
        if self._metrics_key is None:
            return
        if len(sent.keys) == 1 and compare_digest(min(sent.keys).encode(), self._metrics_key):
            return
        identity = self._find(sent)
        if identity is None or not identity.caller.admin:
            if len(sent.keys) != 1:
                raise Unauthorized(SEVERAL if sent.keys else NEEDS_METRICS_KEY)
            raise Unauthorized("the metrics key is wrong, and no admin's")

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
SEVERAL = "this request carries several keys: send one"
WRONG_CERTIFICATE = "the client certificate has the name of no caller, or of several"


def needs(kinds: Collection[str]) -> str:
    """What to say to a request without credentials: what would let it in, by kind of entry."""
    wanted = [sentence for kind, sentence in _BY_KIND.items() if kind in kinds]
    return f"this request needs {' or '.join(wanted or [_BY_KIND['sha256']])}"


_BY_KIND = {
    "sha256": "an API key (the header 'Authorization: Bearer <key>' or 'X-Api-Key: <key>')",
    "subject": "a token (the header 'Authorization: Bearer <token>')",
    "certificate": "a client certificate",
}


def sent_keys(pairs: Iterable[tuple[str, str]]) -> frozenset[str]:
    """The different keys that a request's headers carry; names are in lower case.

    Who sends two of them is refused: what stands before the server may have looked at the other.
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
    """The token of `Bearer <token>`, whatever the case of its first word; None where there is none.

    https://www.rfc-editor.org/rfc/rfc6750#section-2.1
    """
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
