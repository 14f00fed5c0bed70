"""JSON Web Tokens (RFC 7519) of one issuer: whose they are, and until when.

Everything about a token that costs little is checked first, and its signature last, so that what
anybody can make up is refused at about the cost of reading it.
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
"""Characters of a token at most: one that has grown larger fits in few headers anyway."""

MAX_VERIFIED = 16_384
"""Verified tokens remembered at most, about 4 MB. Too many are all forgotten."""

LEEWAY_SECONDS = 30.0
"""How far the issuer's clock may be ahead; a token's end is kept to the second."""

FORGED_PER_SECOND = 100.0
"""Wrong signatures per second, beyond which no new token is verified for a while.

A signature takes 40 to 1300 µs of the event loop by its algorithm, so that this is at most 13 %.
"""

TOKEN_TYPES = frozenset({"jwt", "at+jwt"})
"""`typ`, where a token has one. Others are for other uses: a logout, a proof, an event."""

KEY_CARRIERS = frozenset({"jwk", "jku", "x5c", "x5u"})
"""Header parameters by which a token brings its key along, and so proves nothing."""

EXPIRED = "the token has expired"
ANOTHER_ISSUER = "the token is by another issuer: 'iss' must be COHORT_JWT_ISSUER, to the letter"
ANOTHER_AUDIENCE = "the token is for another audience: COHORT_JWT_AUDIENCE must be in its 'aud'"

Verify = Callable[[bytes, bytes], bool]
"""Says whether a signature, the second argument, is one of the first."""

VerifyingKeys = Mapping[str, Mapping[str, Verify]]
"""An issuer's keys by their `kid`, and what each verifies by `alg`."""


class Claims(NamedTuple):
    """What a verified token says: its `sub`, and its `exp` in seconds since the epoch."""

    subject: str
    until: float


class Issuer:
    """Reads the tokens of one issuer for one audience.

    name: The `iss` that a token must have.
    audience: What must be in its `aud`, or be it: a token for another service is none for this one.
    """

    def __init__(self, name: str, audience: str) -> None:
        self._name = name
        self._audience = audience
        self._keys: VerifyingKeys | None = None
        self._verified: dict[bytes, Claims] = {}
        self._forged = TokenBucket(FORGED_PER_SECOND)
        self._next_at = -math.inf  # when a new token may be verified again

    def follow(self, keys: VerifyingKeys) -> None:
        """Trust these keys from now on, and no others; tokens verified before are so no longer."""
        self._keys = keys
        self._verified.clear()

    def read(self, token: str, digest: bytes) -> Claims:
        """What a token says; `digest` is its SHA-256, by which it is remembered.

        Raises Unauthorized, saying what is wrong with it; NotReady until there are keys; and
        Overloaded for a token not seen before, while too many with wrong signatures are sent.
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
                "too many tokens with a wrong signature were sent", retry_after=self._next_at - now
            )
        if not verify(f"{head}.{body}".encode(), signature):
            self._next_at = now + self._forged.take(now)
            raise Unauthorized("the token's signature is wrong")
        return claims

    def _check(self, claims: Mapping[str, Any]) -> Claims:
        """https://www.rfc-editor.org/rfc/rfc7519#section-4.1."""
        now = time()
        if claims.get("iss") != self._name:
            raise Unauthorized(ANOTHER_ISSUER)
        audience = claims.get("aud")
        if self._audience not in (audience if isinstance(audience, list) else [audience]):
            raise Unauthorized(ANOTHER_AUDIENCE)
        until = _seconds(claims, "exp")
        if until is None:
            raise Unauthorized("the token never expires: it needs an 'exp'")
        if until <= now:
            raise Unauthorized(EXPIRED)
        for name in ("nbf", "iat"):
            since = _seconds(claims, name)
            if since is not None and since > now + LEEWAY_SECONDS:
                raise Unauthorized(f"the token is not valid yet ({name!r})")
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise Unauthorized("the token names nobody: it needs a 'sub'")
        return Claims(subject, until)


def _verify_with(keys: VerifyingKeys, header: Mapping[str, Any]) -> Verify:
    """Find what verifies a token by its header: the issuer's key and an algorithm of that key.

    https://www.rfc-editor.org/rfc/rfc8725#section-3
    """
    if "crit" in header:
        raise Unauthorized("the token has extensions ('crit') that are not known here")
    if brought := KEY_CARRIERS & header.keys():
        raise Unauthorized(f"the token brings its own key ({min(brought)!r})")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in TOKEN_TYPES:
        raise Unauthorized("the token is for another use ('typ')")
    name, algorithm = header.get("kid"), header.get("alg")
    by_algorithm = keys.get(name) if isinstance(name, str) else None
    if name is None:
        raise Unauthorized("the token names no key: it needs a 'kid'")
    if by_algorithm is None:
        raise Unauthorized("the token is signed by a key that the issuer does not have ('kid')")
    verify = by_algorithm.get(algorithm) if isinstance(algorithm, str) else None
    if verify is None:
        raise Unauthorized("the token's algorithm ('alg') is not its key's")
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
    """Read base64url, of which there is one spelling only, so that no token has two."""
    try:
        data = urlsafe_b64decode(segment + "==")  # more than it needs is ignored
    except ValueError:
        data = b""
    if urlsafe_b64encode(data).rstrip(b"=").decode() != segment:
        raise Unauthorized(f"the token's {part} is not base64url")
    return data
