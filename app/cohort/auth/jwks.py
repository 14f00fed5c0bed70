"""The public keys of an issuer of tokens: a JSON Web Key Set (RFC 7517), as issuers publish it.

This module imports PyJWT and OpenSSL, so it is imported only if there is such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import orjson
from jwt.algorithms import get_default_algorithms

from cohort.auth.tokens import Verify, VerifyingKeys
from cohort.errors import quoted
from cohort.repository import ConfigProblems, Problem, read_text

ALGORITHMS = (
    *(("RSA", None, name) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
    ("EC", "P-256", "ES256"),
    ("EC", "P-384", "ES384"),
    ("EC", "P-521", "ES512"),
    ("OKP", "Ed25519", "EdDSA"),
)
"""The algorithm of a key with this `kty` and `crv`; its `alg`, if present, must match one."""

RSA_BITS = range(2048, 8193)
"""Shorter keys can be broken; verifying a longer one takes a millisecond or more."""


class _Wrong(Exception):
    """A problem of a key: the member, and a sentence that contains the fix."""


def load_jwks(path: Path) -> VerifyingKeys:
    """Read the file at `path`, which must exist. Raises ConfigProblems with all problems."""
    text = read_text(path, path.name)
    if text is None:
        raise ConfigProblems([Problem(path.name, "", "is missing")])
    return parse_jwks(text, path.name)


def parse_jwks(text: str, file: str) -> VerifyingKeys:
    """Read the text of such a file, called `file` in messages. Raises ConfigProblems.

    Keys that do not verify signatures, or only with unsupported algorithms, are skipped: an issuer
        may have them for other services.
    """
    try:
        tree = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigProblems([Problem(file, "", f"is not JSON: {error}")]) from None
    jwks = tree.get("keys") if isinstance(tree, dict) else None
    if not isinstance(jwks, list):
        raise ConfigProblems([Problem(file, "keys", "must be a list of keys: is this a JWKS?")])
    keys: dict[str, Mapping[str, Verify]] = {}
    problems = []
    for place, jwk in enumerate(jwks):
        try:
            by_algorithm = _read_key(jwk)
            if by_algorithm:
                name = _name_of(jwk)
                if name in keys:
                    raise _Wrong("kid", f"{quoted(name)} is already the name of another key")
                keys[name] = by_algorithm
        except _Wrong as error:
            member, sentence = error.args
            problems.append(Problem(file, f"keys[{place}].{member}".removesuffix("."), sentence))
    if jwks and not keys and not problems:
        problems.append(Problem(file, "keys", "has no key that verifies signatures"))
    if problems:
        raise ConfigProblems(problems)
    return keys


def _read_key(jwk: object) -> Mapping[str, Verify]:
    """Return the key's verifiers by algorithm; empty for a key with other uses. Raises _Wrong."""
    if not isinstance(jwk, dict):
        raise _Wrong("", "must be a key: an object with 'kty' and 'kid'")
    kind, algorithm, uses = jwk.get("kty"), jwk.get("alg"), jwk.get("key_ops", ["verify"])
    if kind == "oct":
        raise _Wrong("kty", "is a shared secret ('oct'), which could also sign; use a public key")
    if "d" in jwk:
        raise _Wrong("d", "is a private key: put the public one here, and replace this one")
    if jwk.get("use", "sig") != "sig" or not isinstance(uses, list) or "verify" not in uses:
        return {}
    names = [
        name
        for known, curve, name in ALGORITHMS
        if (kind, jwk.get("crv")) == (known, curve) and algorithm in (None, name)
    ]
    if not names:
        return {}
    try:
        key = jwt.PyJWK(jwk, names[0]).key
    except (jwt.PyJWTError, ValueError, TypeError):
        raise _Wrong("", f"is not a valid {kind} key") from None
    if kind == "RSA" and key.key_size not in RSA_BITS:
        fitting = f"from {RSA_BITS.start} to {RSA_BITS.stop - 1} bits"
        raise _Wrong("n", f"must have {fitting}, got {key.key_size}")
    return {name: _verify_by(name, key) for name in names}


def _name_of(jwk: Mapping[str, Any]) -> str:
    name = jwk.get("kid")
    if not isinstance(name, str) or not name:
        raise _Wrong("kid", "must be a string that identifies the key")
    return name


def _verify_by(name: str, key: Any) -> Verify:
    algorithm = get_default_algorithms()[name]
    return lambda signed, signature: algorithm.verify(signed, key, signature)
