"""JSON Web Tokens (RFC 7519) of one issuer: their subject and expiry.

All cheap checks come first, and the signature last. So forged tokens cost little more than reading
them.
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from time import monotonic, time
from typing import Any, NamedTuple

import orjson

from cohort.auth.quota import TokenBucket
from cohort.errors import NotReady, Overloaded, Unauthorized

MAX_TOKEN_LENGTH = 8 * 1024
"""Maximum characters of a token; longer ones rarely fit in a header."""

MAX_VERIFIED = 16_384
"""Maximum of remembered verified tokens, about 4 MB. When it is reached, all are forgotten."""

LEEWAY_SECONDS = 30.0
"""Tolerance for an issuer's clock that is ahead, for `nbf` and `iat`; `exp` is exact."""

FORGED_PER_SECOND = 100.0
"""Wrong signatures per second; above this rate no new token is verified for a while.

A signature takes 40 to 1300 µs of the event loop, depending on its algorithm, so this is at most 13
%.
"""

TOKEN_TYPES = frozenset({"jwt", "at+jwt"})
"""Accepted `typ` of a token that has one. Others are for other uses: a logout, a proof, an event.
"""

KEY_CARRIERS = frozenset({"jwk", "jku", "x5c", "x5u"})
"""Header parameters with the token's own key, which would prove nothing."""

EXPIRED = "the token has expired"
ANOTHER_ISSUER = "the token's issuer ('iss') does not match COHORT_JWT_ISSUER"
ANOTHER_AUDIENCE = "the token's audience ('aud') does not contain COHORT_JWT_AUDIENCE"

Verify = Callable[[bytes, bytes], bool]
"""Returns True if the second argument is a valid signature of the first."""

VerifyingKeys = Mapping[str, Mapping[str, Verify]]
"""An issuer's keys by their `kid`, each with its verifiers by `alg`."""


class Claims(NamedTuple):
    """The claims of a verified token: its `sub`, and its `exp` in seconds since the epoch."""

    subject: str
    until: float


class Issuer:
    """Reads the tokens of one issuer for one audience.

    name: The `iss` that a token must have.
    audience: A value that its `aud` must equal or contain: tokens for other services are refused.
    """

    def __init__(self, name: str, audience: str) -> None:
        self._name = name
        self._audience = audience
        self._keys: VerifyingKeys | None = None
        self._verified: dict[bytes, Claims] = {}
        self._forged = TokenBucket(FORGED_PER_SECOND)
        self._next_at = -math.inf  # new tokens may be verified after this time

    def follow(self, keys: VerifyingKeys) -> None:
        """Trust only these keys from now on; earlier verified tokens are forgotten."""
        self._keys = keys
        self._verified.clear()

    def read(self, token: str, digest: bytes) -> Claims:
        """Return a token's claims; `digest` is its SHA-256, used as a cache key.

        Raises Unauthorized with the problem of the token, and NotReady until there are keys. Raises
        Overloaded for a new token while too many tokens with wrong signatures arrive.
        """
        claims = self._verified.get(digest)
        if claims is None:
            claims = self._verify(token)
            if len(self._verified) >= MAX_VERIFIED:
                self._verified.clear()
            self._verified[digest] = claims
        elif claims.until <= time():
            raise Unauthorized(EXPIRED)
        return claims

    def _verify(self, token: str) -> Claims:
        if self._keys is None:
            raise NotReady("the issuer's keys cannot be read yet")
        if len(token) > MAX_TOKEN_LENGTH:
            raise Unauthorized(f"the token is longer than {MAX_TOKEN_LENGTH} characters")
        head, _, rest = token.partition(".")
        body, _, tail = rest.partition(".")
        verify = _verify_with(self._keys, _read_json(head, "header"))
        claims = self._check(_read_json(body, "payload"))
        signature = _decode(tail, "signature")
        now = monotonic()
        if now < self._next_at:
            raise Overloaded(
                "too many tokens with a wrong signature; retry later",
                retry_after=self._next_at - now,
            )
        if not verify(f"{head}.{body}".encode(), signature):
            self._next_at = now + self._forged.take(now)
            raise Unauthorized("the token's signature is wrong")
        return claims

    def _check(self, claims: Mapping[str, Any]) -> Claims:
        """Check the claims: https://www.rfc-editor.org/rfc/rfc7519#section-4.1."""
        now = time()
        if claims.get("iss") != self._name:
            raise Unauthorized(ANOTHER_ISSUER)
        audience = claims.get("aud")
        if self._audience not in (audience if isinstance(audience, list) else [audience]):
            raise Unauthorized(ANOTHER_AUDIENCE)
        until = _seconds(claims, "exp")
        if until is None:
            raise Unauthorized("the token has no expiry ('exp')")
        if until <= now:
            raise Unauthorized(EXPIRED)
        for name in ("nbf", "iat"):
            since = _seconds(claims, name)
            if since is not None and since > now + LEEWAY_SECONDS:
                raise Unauthorized(f"the token is not valid yet ({name!r})")
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise Unauthorized("the token has no subject ('sub')")
        return Claims(subject, until)


def _verify_with(keys: VerifyingKeys, header: Mapping[str, Any]) -> Verify:
    """Return the verifier for a token's header: the issuer's key with the token's algorithm.

    https://www.rfc-editor.org/rfc/rfc8725#section-3
    """
    if "crit" in header:
        raise Unauthorized("the token has unsupported extensions ('crit')")
    if brought := KEY_CARRIERS & header.keys():
        raise Unauthorized(f"the token contains its own key ({min(brought)!r})")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in TOKEN_TYPES:
        raise Unauthorized("the token's type ('typ') must be 'JWT' or 'at+jwt'")
    name, algorithm = header.get("kid"), header.get("alg")
    by_algorithm = keys.get(name) if isinstance(name, str) else None
    if name is None:
        raise Unauthorized("the token has no key id ('kid')")
    if by_algorithm is None:
        raise Unauthorized("the token's key id ('kid') is not among the issuer's keys")
    verify = by_algorithm.get(algorithm) if isinstance(algorithm, str) else None
    if verify is None:
        raise Unauthorized("the token's algorithm ('alg') does not match its key")
    return verify


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unauthorized(f"the token's {name!r} is not a number of seconds")
    return float(value)


def _read_json(segment: str, part: str) -> Mapping[str, Any]:
    try:
        value = orjson.loads(_decode(segment, part))
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise Unauthorized(f"the token's {part} is not a JSON object")
    return value


def _decode(segment: str, part: str) -> bytes:
    """Read base64url in its only canonical spelling, so that no token has two spellings."""
    try:
        data = urlsafe_b64decode(segment + "==")  # excess padding is ignored
    except ValueError:
        data = b""
    if urlsafe_b64encode(data).rstrip(b"=").decode() != segment:
        raise Unauthorized(f"the token's {part} is not base64url")
    return data
