"""Tokens of an issuer are accepted, and all others are refused with the reason."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from cohort.auth import Issuer, digest_of
from cohort.auth.jwks import parse_jwks
from cohort.auth.tokens import (
    ANOTHER_AUDIENCE,
    ANOTHER_ISSUER,
    FORGED_PER_SECOND,
    LEEWAY_SECONDS,
    MAX_TOKEN_LENGTH,
    MAX_VERIFIED,
    Claims,
)
from cohort.errors import CohortError, NotReady, Overloaded, Unauthorized
from tests.auth.issuing import (
    ALGORITHMS,
    AUDIENCE,
    ISSUER,
    claims,
    jwks,
    private_key,
    public_jwk,
    token,
)


def issuer(*keys: dict[str, Any]) -> Issuer:
    made = Issuer(ISSUER, AUDIENCE)
    made.follow(parse_jwks(jwks(*keys), "jwks.json"))
    return made


def read(sent: str, by: Issuer | None = None) -> Claims:
    return (by or issuer()).read(sent, digest_of(sent))


def refusal(sent: str, by: Issuer | None = None) -> str:
    with pytest.raises(Unauthorized) as caught:
        read(sent, by)
    return str(caught.value)


def segment(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(data).rstrip(b"=").decode()


# --- Good tokens


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_by_the_issuers_key_says_who_it_is(algorithm: str) -> None:
    """Each algorithm verifies, whether or not the key names its algorithm."""
    until = int(time.time()) + 60
    sent = token(claims(exp=until), algorithm=algorithm)
    for members in ({}, {"alg": algorithm}, {"use": "sig"}, {"key_ops": ["verify"]}):
        assert read(sent, issuer(public_jwk(algorithm, **members))) == ("alice", until)


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": [AUDIENCE]},
        {"aud": ["other", AUDIENCE]},
        {"iat": None},
        {"iat": time.time() + LEEWAY_SECONDS / 2},
        {"nbf": time.time() + LEEWAY_SECONDS / 2},
        {"nbf": 0},
        {"exp": 2**40 + 0.5},
        {"exp": 2**62},
        {"scope": "more", "groups": ["a"] * 50},
    ],
)
def test_claims_that_a_good_token_may_have(changes: dict[str, object]) -> None:
    """Several audiences, a clock that is a little ahead, fractions of seconds, and others."""
    assert read(token(claims(**changes))).subject == "alice"


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+JWT", None])
def test_types_that_a_good_token_may_have(kind: str | None) -> None:
    """An access token is accepted, and so is a token without a type."""
    assert read(token(typ=kind)).subject == "alice"


# --- The claims of a token


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"iss": "https://other.example"},
            ANOTHER_ISSUER,
        ),
        (
            {"iss": ISSUER + "/"},
            ANOTHER_ISSUER,
        ),
        (
            {"iss": None},
            ANOTHER_ISSUER,
        ),
        (
            {"aud": "other"},
            ANOTHER_AUDIENCE,
        ),
        (
            {"aud": AUDIENCE + "s"},
            ANOTHER_AUDIENCE,
        ),
        (
            {"aud": "a cohort"},
            ANOTHER_AUDIENCE,
        ),
        (
            {"aud": []},
            ANOTHER_AUDIENCE,
        ),
        (
            {"aud": [[AUDIENCE]]},
            ANOTHER_AUDIENCE,
        ),
        (
            {"aud": {AUDIENCE: 1}},
            ANOTHER_AUDIENCE,
        ),
        (
            {"aud": None},
            ANOTHER_AUDIENCE,
        ),
        ({"exp": None}, "the token has no expiry ('exp')"),
        ({"exp": time.time() - 1}, "the token has expired"),
        ({"exp": "9999999999"}, "the token's 'exp' is not a number of seconds"),
        ({"exp": True}, "the token's 'exp' is not a number of seconds"),
        ({"exp": [9999999999]}, "the token's 'exp' is not a number of seconds"),
        ({"nbf": time.time() + 10_000}, "the token is not valid yet ('nbf')"),
        ({"iat": time.time() + 10_000}, "the token is not valid yet ('iat')"),
        ({"iat": "now"}, "the token's 'iat' is not a number of seconds"),
        ({"sub": None}, "the token has no subject ('sub')"),
        ({"sub": ""}, "the token has no subject ('sub')"),
        ({"sub": ["alice"]}, "the token has no subject ('sub')"),
    ],
)
def test_claims_that_are_refused(changes: dict[str, object], said: str) -> None:
    """Each is refused with its reason, although the signature is right."""
    whole = claims(**changes)
    signed = jwt.api_jws.encode(
        json.dumps(whole).encode(), private_key(), algorithm="ES256", headers={"kid": "k1"}
    )
    assert refusal(signed) == said


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "1" + "0" * 400])
def test_a_token_does_not_last_for_ever(number: str) -> None:
    """An expiry that is not a number, or is not finite, is refused."""
    payload = json.dumps(claims(exp="?")).replace('"?"', number).encode()
    signed = jwt.api_jws.encode(payload, private_key(), algorithm="ES256", headers={"kid": "k1"})
    assert refusal(signed)


def test_a_token_expires_to_the_second_although_it_was_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is remembered, and its end with it."""
    until = int(time.time()) + 100
    sent, by = token(claims(exp=until)), issuer()
    monkeypatch.setattr("cohort.auth.tokens.time", lambda: until - 0.001)
    assert read(sent, by).until == until
    monkeypatch.setattr("cohort.auth.tokens.time", lambda: float(until))
    assert refusal(sent, by) == "the token has expired"
    assert refusal(sent) == "the token has expired"


# --- How a token is signed


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"kid": "k2"}, "the token's key id ('kid') is not among the issuer's keys"),
        ({"kid": None}, "the token has no key id ('kid')"),
        ({"kid": "../k1"}, "the token's key id ('kid') is not among the issuer's keys"),
        ({"crit": ["exp"], "exp": 1}, "the token has unsupported extensions ('crit')"),
        ({"crit": []}, "the token has unsupported extensions ('crit')"),
        ({"jwk": public_jwk()}, "the token contains its own key ('jwk')"),
        ({"jku": "https://x.example/jwks"}, "the token contains its own key ('jku')"),
        ({"x5u": "https://x.example/cert"}, "the token contains its own key ('x5u')"),
        ({"x5c": ["MII"]}, "the token contains its own key ('x5c')"),
        ({"typ": "logout+jwt"}, "the token's type ('typ') must be 'JWT' or 'at+jwt'"),
        ({"typ": "dpop+jwt"}, "the token's type ('typ') must be 'JWT' or 'at+jwt'"),
    ],
)
def test_headers_that_are_refused(header: dict[str, object], said: str) -> None:
    """They are refused although the signature is by the issuer's key."""
    parts = {"alg": "ES256", "kid": "k1", "typ": "JWT", **header}
    signed = f"{segment(parts)}.{segment(claims())}"
    signature = jwt.get_algorithm_by_name("ES256").sign(signed.encode(), private_key())
    assert refusal(f"{signed}.{segment(signature)}") == said


@pytest.mark.parametrize("kid", [None, 1, ["k1"], {"k1": 1}, "", "K1", "k1 "])
def test_a_token_names_its_key(kid: object) -> None:
    """A missing or unknown name is refused, although the issuer has only one key."""
    header = {"alg": "ES256", "typ": "JWT"} | ({} if kid is None else {"kid": kid})
    sent = f"{segment(header)}.{segment(claims())}.{segment(b'x' * 64)}"
    assert "'kid'" in refusal(sent)


@pytest.mark.parametrize("algorithm", ["none", "None", "", None, "HS256", "es256", ["ES256"], 1])
def test_a_token_does_not_choose_how_it_is_verified(algorithm: object) -> None:
    """An unsigned token and one signed with the public key as a secret are refused."""
    header = {"alg": algorithm, "kid": "k1", "typ": "JWT"}
    for signature in (b"", b"x" * 64):
        sent = f"{segment(header)}.{segment(claims())}.{segment(signature)}"
        assert refusal(sent) == "the token's algorithm ('alg') does not match its key"


@pytest.mark.parametrize("key", ["RS256", "ES256", "EdDSA"])
def test_a_public_key_is_no_secret_to_sign_with(key: str) -> None:
    """It is refused as a secret in PEM and in DER."""
    public = private_key(key).public_key()
    by = issuer(public_jwk(key))
    for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER):
        secret = public.public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
        signed = f"{segment({'alg': 'HS256', 'kid': 'k1', 'typ': 'JWT'})}.{segment(claims())}"
        signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
            signed.encode(), secret
        )
        sent = f"{signed}.{segment(signature)}"
        assert refusal(sent, by) == "the token's algorithm ('alg') does not match its key"


def test_a_key_verifies_by_its_own_algorithm_only() -> None:
    """A key that names its algorithm is good for no other of its kind; a curve has only one."""
    by = issuer(public_jwk("RS256", "k1", alg="PS256"))
    assert read(token(algorithm="PS256"), by)
    for algorithm in set(ALGORITHMS) - {"PS256"}:
        assert refusal(token(algorithm=algorithm), by).endswith("('alg') does not match its key")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_signature_by_another_key_is_wrong(algorithm: str) -> None:
    """The other key has the same kind and the same name."""
    sent = token(algorithm=algorithm, key=private_key(algorithm, "another"))
    assert refusal(sent, issuer(public_jwk(algorithm))) == "the token's signature is wrong"


def test_a_key_that_was_taken_out_opens_nothing() -> None:
    """Its tokens are refused at once, also verified ones; those of a new key are accepted."""
    by = issuer(public_jwk())
    old, new = token(), token(algorithm="EdDSA", kid="k2")
    assert read(old, by)
    by.follow(parse_jwks(jwks(public_jwk("EdDSA", "k2")), "jwks.json"))
    assert read(new, by)
    assert "('kid')" in refusal(old, by)
    by.follow({})
    assert "('kid')" in refusal(new, by)


# --- Texts that are not a token


GOOD = token()


@pytest.mark.parametrize(
    "sent",
    [
        *("..", "a.b.c", "...", GOOD + ".", "." + GOOD, GOOD + ".x", GOOD.replace(".", "..")),
        *(GOOD + "=", GOOD + "==", GOOD + "\n", " " + GOOD, GOOD + "\u00e9", GOOD + "!"),
        *(GOOD.rpartition(".")[0] + ".", f".{GOOD.partition('.')[2]}", f"{segment([])}.x.y"),
        f"{segment(b'[' * 3000)}.{segment({})}.x",
        f"{segment(b'{' * 3000)}.{segment({})}.x",
        f"{GOOD.partition('.')[0]}.{segment(b'[' * 3000)}.x",
        f"{GOOD.partition('.')[0]}.{segment(b'1')}.{GOOD.rpartition('.')[2]}",
        f"{segment(bytes([255, 254]))}.{segment({})}.x",
    ],
)
def test_what_is_no_token_is_refused(sent: str) -> None:
    """Any mistake in it gives an error about the token."""
    assert refusal(sent).startswith("the token's ")


def test_a_token_has_one_spelling() -> None:
    """The unused bits of its last letter do not allow a second spelling."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    by = issuer()
    accepted = []
    for letter in letters:
        try:
            accepted.append(read(GOOD[:-1] + letter, by))
        except CohortError:
            continue
    assert len(accepted) == 1


def test_a_long_token_is_refused_unread() -> None:
    """It is refused even if its signature is good."""
    longest = claims(more="x" * 10_000)
    assert refusal(token(longest)) == f"the token is longer than {MAX_TOKEN_LENGTH} characters"


def mutated(draw: Callable[..., Any], text: str) -> str:
    """A text with a part of it left out, doubled, or replaced."""
    start = draw(st.integers(0, len(text) - 1))
    end = draw(st.integers(start, min(len(text), start + 20)))
    new: str = draw(st.one_of(st.text(max_size=5), st.just(text[start:end] * 2), st.just("")))
    return text[:start] + new + text[end:]


@given(st.data())
def test_no_mutation_of_a_token_is_accepted(data: st.DataObject) -> None:
    """Any edit of its text is refused, and only with an error of Cohort."""
    by = issuer()
    sent = mutated(data.draw, GOOD)
    if sent != GOOD:
        with pytest.raises((Unauthorized, Overloaded)):
            read(sent, by)


@given(st.data())
def test_no_mutation_of_what_a_token_says_is_accepted(data: st.DataObject) -> None:
    """Edits of its header, claims or signature are refused, also if they are encoded well."""
    by = issuer()
    parts = [urlsafe_b64decode(part + "==") for part in GOOD.split(".")]
    place = data.draw(st.integers(0, 2))
    text = mutated(data.draw, parts[place].decode("latin-1"))
    parts[place] = text.encode("latin-1", "replace")
    sent = ".".join(map(segment, parts))
    if sent != GOOD:
        with pytest.raises((Unauthorized, Overloaded)):
            read(sent, by)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=3), some),
)


@given(
    st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "jwk", "b64"]), JSON),
    st.dictionaries(st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub"]), JSON),
)
def test_whatever_a_header_or_a_claim_is_there_is_an_answer(
    header: dict[str, object], said: dict[str, object]
) -> None:
    """Any value next to valid ones is accepted or refused, never with an unexpected error."""
    by = Issuer(ISSUER, AUDIENCE)
    by.follow({"k1": {"ES256": lambda signed, signature: True}})  # as if all were signed
    whole = {"alg": "ES256", "kid": "k1", **header}
    sent = f"{segment(whole)}.{segment({**claims(), **said})}.{segment(b'x')}"
    try:
        found = read(sent, by)
    except Unauthorized:
        return
    assert isinstance(found.subject, str)
    assert found.until > time.time()


# --- Thousands of them


def test_a_token_is_verified_once() -> None:
    """It is verified again only after too many were remembered and all were forgotten."""
    verified: list[bytes] = []

    def verify(signed: bytes, signature: bytes) -> bool:
        verified.append(signed)
        return True

    by = Issuer(ISSUER, AUDIENCE)
    by.follow({"k1": {"ES256": verify}})
    head, body, _ = GOOD.split(".")
    other = f"{head}.{body}.{segment(b'other')}"
    for _ in range(3):
        read(GOOD, by)
        read(other, by)
    assert len(verified) == 2
    for number in range(MAX_VERIFIED):
        read(f"{head}.{body}.{segment(number.to_bytes(3))}", by)
    read(GOOD, by)
    assert len(verified) == MAX_VERIFIED + 3


def test_wrong_signatures_are_verified_at_a_bounded_rate() -> None:
    """Beyond it new tokens wait; those that were verified, and cheap refusals, do not."""
    by = Issuer(ISSUER, AUDIENCE)
    tried: list[bytes] = []

    def verify(signed: bytes, signature: bytes) -> bool:
        tried.append(signature)
        return signature == b"good"

    by.follow({"k1": {"ES256": verify}})
    head, body, _ = GOOD.split(".")
    good, bad = (f"{head}.{body}.{segment(one)}" for one in (b"good", b"bad!"))
    read(good, by)

    def refused(seconds: float) -> Counter[str]:
        """Count how a thousand bad tokens are refused, `seconds` after the first."""
        told: Counter[str] = Counter()
        with mock.patch("cohort.auth.tokens.monotonic", return_value=1000.0 + seconds):
            for _ in range(1000):
                with pytest.raises((Unauthorized, Overloaded)) as caught:
                    read(bad, by)
                told[type(caught.value).__name__] += 1
                if isinstance(caught.value, Overloaded):
                    assert 0 < caught.value.retry_after <= 1
            assert read(good, by)
        return told

    first, later = refused(0.0), refused(0.5)
    assert first["Unauthorized"] == pytest.approx(FORGED_PER_SECOND, abs=1)
    assert later["Unauthorized"] == pytest.approx(FORGED_PER_SECOND / 2, abs=1)
    assert len(tried) == first["Unauthorized"] + later["Unauthorized"] + 1
    assert "('kid')" in refusal(token(kid="k2"), by)


def test_until_there_are_keys_a_token_is_told_to_wait() -> None:
    """A token gets an error that asks to retry until the issuer's keys can be read."""
    with pytest.raises(NotReady):
        read(GOOD, Issuer(ISSUER, AUDIENCE))
