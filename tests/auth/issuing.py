"""An issuer of tokens: its keys, its JWKS, and tokens with anything in them."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

ISSUER, AUDIENCE = "https://issuer.example", "cohort"

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


@cache
def private_key(algorithm: str = "ES256", name: str = "") -> Any:
    """The issuer's key for an algorithm, or another of that `name`. RSA has one for all six."""
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm])
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return _rsa_key(name)


@cache
def _rsa_key(name: str, bits: int = 2048) -> Any:
    return rsa.generate_private_key(65537, bits)


def short_rsa_key() -> Any:
    """Shorter than is secure."""
    return _rsa_key("", 1024)


def jwk_of(key: Any, kid: str = "k1", **members: object) -> dict[str, Any]:
    """Return a key in the form of a JWKS entry; it is private if `key` is private."""
    families = {
        rsa.RSAPublicKey: "RS256", rsa.RSAPrivateKey: "RS256",
        ec.EllipticCurvePublicKey: "ES256", ec.EllipticCurvePrivateKey: "ES256",
    }  # fmt: skip
    name = next((one for kind, one in families.items() if isinstance(key, kind)), "EdDSA")
    made: dict[str, Any] = get_default_algorithms()[name].to_jwk(key, as_dict=True)
    made.pop("key_ops", None)
    return {**made, "kid": kid, **members}


def public_jwk(algorithm: str = "ES256", kid: str = "k1", **members: object) -> dict[str, Any]:
    """The public half of the issuer's key for an algorithm."""
    return jwk_of(private_key(algorithm).public_key(), kid, **members)


def jwks(*keys: dict[str, Any]) -> str:
    """A JWKS of these keys; without any, of the issuer's for ES256."""
    return json.dumps({"keys": keys or [public_jwk()]})


def claims(**changes: object) -> dict[str, Any]:
    """Return a good token's claims, valid for some hours, with changes; None leaves a claim out."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 20_000, "iat": now}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def token(
    said: dict[str, Any] | None = None,
    *,
    algorithm: str = "ES256",
    key: Any = None,
    **header: object,
) -> str:
    """Return a token with these claims, signed by the issuer's key `k1`. `header`: more members."""
    return jwt.encode(
        claims() if said is None else said,
        private_key(algorithm) if key is None else key,
        algorithm=algorithm,
        headers={"kid": "k1", **header},
    )
