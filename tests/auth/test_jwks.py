"""An issuer's file of keys: its valid contents, and the errors of invalid ones."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.auth.jwks import load_jwks, parse_jwks
from cohort.repository import ConfigProblems
from tests.auth.issuing import jwk_of, jwks, private_key, public_jwk, short_rsa_key

EC = public_jwk()
RSA = public_jwk("RS256", "r1")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigProblems) as caught:
        parse_jwks(text, "jwks.json")
    return str(caught.value).splitlines()


def test_each_key_verifies_by_what_it_is() -> None:
    """RSA keys verify six algorithms, or the one that they name; a curve's key verifies one."""
    keys = parse_jwks(
        jwks(
            RSA,
            public_jwk("RS256", "r2", alg="RS512"),
            *(public_jwk(name, name) for name in ("ES256", "ES384", "ES512", "EdDSA")),
        ),
        "jwks.json",
    )
    assert {name: sorted(verify) for name, verify in keys.items()} == {
        "r1": ["PS256", "PS384", "PS512", "RS256", "RS384", "RS512"],
        "r2": ["RS512"],
        **{name: [name] for name in ("ES256", "ES384", "ES512", "EdDSA")},
    }


@pytest.mark.parametrize(
    "key",
    [
        public_jwk("RS256", "other", use="enc"),
        public_jwk("RS256", "other", alg="RSA-OAEP"),
        public_jwk("ES256", "other", alg="RS256"),
        public_jwk("ES256", "other", key_ops=["deriveKey"]),
        {"kty": "EC", "crv": "secp256k1", "kid": "other"},
        {"kty": "OKP", "crv": "X25519", "kid": "other"},
        {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AA", "kid": "other"},
        {"kty": ["RSA"], "kid": "other"},
    ],
)
def test_keys_for_other_uses_are_left_out(key: dict[str, Any]) -> None:
    """An issuer has them for others; a file of only such keys was meant for something else."""
    assert set(parse_jwks(jwks(EC, key), "jwks.json")) == {"k1"}
    assert problems(jwks(key)) == ["jwks.json: keys: has no key that verifies signatures"]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (jwk_of(private_key()), "keys[1].d: is a private key: put the public one here"),
        (jwk_of(private_key("RS256")), "keys[1].d: is a private key: put the public one here"),
        ({"kty": "oct", "k": "c2VjcmV0", "kid": "s"}, "keys[1].kty: is a shared secret ('oct')"),
        (jwk_of(short_rsa_key().public_key(), "s"), "keys[1].n: must have from 2048 to 8192 bits"),
        ({**RSA, "kid": None}, "keys[1].kid: must be a string that identifies the key"),
        ({**RSA, "kid": 5}, "keys[1].kid: must be a string that identifies the key"),
        ({**RSA, "kid": ""}, "keys[1].kid: must be a string that identifies the key"),
        ({**RSA, "kid": "k1"}, "keys[1].kid: 'k1' is already the name of another key"),
        ({**RSA, "n": "!"}, "keys[1]: is not a valid RSA key"),
        ({**RSA, "n": 5}, "keys[1]: is not a valid RSA key"),
        ({"kty": "RSA", "kid": "r"}, "keys[1]: is not a valid RSA key"),
        ({**EC, "kid": "e", "x": EC["y"]}, "keys[1]: is not a valid EC key"),
        ({**EC, "kid": "e", "crv": "P-384"}, "keys[1]: is not a valid EC key"),
        ("key", "keys[1]: must be a key: an object with 'kty' and 'kid'"),
    ],
)
def test_a_wrong_key_is_named_with_its_place(key: dict[str, Any], said: str) -> None:
    """The file, the member, and what to do; a key itself is not repeated."""
    (alone,) = problems(jwks(key)) if "'k1'" not in said else [""]
    assert alone.startswith("jwks.json: keys[0]") or "'k1'" in said
    (told,) = problems(jwks(EC, key))
    assert told.startswith(f"jwks.json: {said}")
    assert EC["x"] not in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "jwks.json: is not JSON: "),
        ("{", "jwks.json: is not JSON: "),
        ("[" * 10_000, "jwks.json: is not JSON: "),
        ("[]", "jwks.json: keys: must be a list of keys: is this a JWKS?"),
        (json.dumps(EC), "jwks.json: keys: must be a list of keys: is this a JWKS?"),
        ('{"keys": {}}', "jwks.json: keys: must be a list of keys: is this a JWKS?"),
    ],
)
def test_what_is_no_set_of_keys_is_refused(text: str, said: str) -> None:
    """An empty file is refused as well, since it was probably cut off."""
    assert problems(text)[0].startswith(said)


def test_an_issuer_may_have_no_key() -> None:
    """Without keys no token of the issuer is good."""
    assert parse_jwks('{"keys": []}', "jwks.json") == {}


def test_a_file_that_is_missing_or_large_is_a_problem(tmp_path: Path) -> None:
    """It is asked for, so that there has to be one; of 64 KiB at most."""
    file = tmp_path / "jwks.json"
    with pytest.raises(ConfigProblems, match=r"jwks\.json: is missing"):
        load_jwks(file)
    file.write_text(jwks(*(public_jwk("RS256", str(number)) for number in range(200))))
    with pytest.raises(ConfigProblems, match="is too large"):
        load_jwks(file)
    file.write_text(jwks())
    assert set(load_jwks(file)) == {"k1"}


MEMBERS = ("kty", "crv", "alg", "use", "key_ops", "kid", "n", "e", "x", "y")
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.lists(st.text(max_size=3)),
    st.sampled_from([EC["x"], RSA["n"], "RSA", "EC", "P-256", "OKP", "Ed25519", "AQAB"]),
)  # fmt: skip


@given(
    st.sampled_from([EC, RSA, public_jwk("EdDSA")]),
    st.dictionaries(st.sampled_from(MEMBERS), VALUES),
)
def test_whatever_a_member_is_the_file_is_read_or_refused(
    key: dict[str, Any], changes: dict[str, object]
) -> None:
    """Never by an error that has no place in the file."""
    with suppress(ConfigProblems):
        assert parse_jwks(jwks({**key, **changes}), "jwks.json")
