"""Permission to call, to operate and to read metrics, from the credentials of any adapter."""

from __future__ import annotations

import time

import pytest

from cohort.auth import ApiKey, Caller, Issuer, KeyRing, digest_of
from cohort.auth.authority import Authority, Credentials, bearer_token, sent_keys
from cohort.auth.jwks import parse_jwks
from cohort.errors import Forbidden, NotReady, Unauthorized
from tests.auth.issuing import AUDIENCE, ISSUER, claims, jwks, token


def headers(*pairs: tuple[str, str]) -> Credentials:
    """Return the credentials of a request with these headers."""
    return Credentials(sent_keys(pairs))


def bearer(*tokens: str) -> Credentials:
    """Return the credentials of a request with an Authorization header for each of these tokens."""
    return headers(*(("authorization", f"Bearer {token}") for token in tokens))


def certificate(*names: str) -> Credentials:
    """Return the credentials of a request on a connection with such a client certificate."""
    return Credentials(frozenset(), frozenset(names))


NOTHING = headers()


def operator(admin_token: str | None = "secret") -> Authority:
    """A server that asks operators for a token, and callers for none."""
    return Authority(KeyRing(admin_token))


def ring(*keys: ApiKey, admin_token: str | None = "secret") -> KeyRing:
    made = KeyRing(admin_token)
    made.follow(keys)
    return made


def key(name: str, secret: str, **more: object) -> ApiKey:
    return ApiKey(name, digest_of(secret).hex(), **more)  # type: ignore[arg-type]


# --- Operators


@pytest.mark.parametrize("sent", ["Bearer secret", "bearer secret", " BEARER   secret "])
def test_the_admin_token_makes_an_operator(sent: str) -> None:
    """The scheme's case and spaces around the token do not matter."""
    operator().check_operator(headers(("authorization", sent)))


@pytest.mark.parametrize("sent", [None, "", "secret", "Basic secret", "Bearer", "Bearer "])
def test_without_a_bearer_token_nobody_is_known(sent: str | None) -> None:
    """The error names the header to send."""
    pairs = [] if sent is None else [("authorization", sent)]
    with pytest.raises(Unauthorized, match="the header 'Authorization: Bearer <admin token>'"):
        operator().check_operator(headers(*pairs))


@pytest.mark.parametrize("sent", ["secre", "secrets", "Secret", "s\u00e9cret", "secret secret"])
def test_a_wrong_token_is_refused_and_not_repeated(sent: str) -> None:
    """All of the token has to be equal, and no error repeats it."""
    with pytest.raises(Forbidden) as refused:
        operator().check_operator(bearer(sent))
    assert str(refused.value) == "the admin token is wrong"


@pytest.mark.parametrize("sent", ["", "None"])
def test_without_an_admin_token_there_is_no_operator(sent: str) -> None:
    """The error names the setting that an operator has to set."""
    with pytest.raises(Forbidden, match="COHORT_ADMIN_TOKEN"):
        operator(None).check_operator(bearer(sent))


def test_admins_have_keys_of_their_own() -> None:
    """A key with `admin: true` operates, with or without an admin token; other keys do not."""
    authority = Authority(ring(key("ops", "o", admin=True), key("web", "w"), admin_token=None))
    authority.check_operator(bearer("o"))
    with pytest.raises(Forbidden, match="this caller is not an admin"):
        authority.check_operator(bearer("w"))


def test_an_operator_has_the_name_of_its_key() -> None:
    """The audit log shows that name."""
    authority = Authority(ring(key("ops", "o", admin=True)))
    assert authority.check_operator(bearer("o")).name == "ops"
    assert authority.check_operator(bearer("secret")).name == "admin"


def test_an_authority_shows_no_token() -> None:
    """Its `repr` does not contain the token, so tracebacks and log lines do not."""
    assert "secret" not in repr(operator())


# --- Callers


def test_a_caller_is_known_by_its_key() -> None:
    """Either header identifies it; the admin token is a key that sees all models."""
    authority = Authority(ring(key("web", "w", models=("iris",))), asks_callers=True)
    assert authority.caller(bearer("w")).name == "web"
    assert authority.caller(headers(("x-api-key", " w "))).models == frozenset({"iris"})
    admin = authority.caller(bearer("secret"))
    assert (admin.name, admin.models, admin.admin) == ("admin", None, True)


def test_without_a_key_or_with_a_wrong_one_nobody_calls() -> None:
    """Each is Unauthorized, has a separate count, and is not repeated in the error."""
    keys = ring(key("web", "w"))
    authority = Authority(keys, asks_callers=True)
    for sent, said in ((NOTHING, "X-Api-Key"), (bearer("guess"), "wrong")):
        with pytest.raises(Unauthorized, match=said) as refused:
            authority.caller(sent)
        assert "guess" not in str(refused.value)
    assert (keys.missing, keys.wrong) == (1, 1)


def test_two_keys_are_refused_although_both_are_right() -> None:
    """A proxy may have checked only one of two different keys.

    The same key sent twice is one key.
    """
    authority = Authority(ring(key("web", "w"), key("other", "o")), asks_callers=True)
    two = headers(("authorization", "Bearer w"), ("x-api-key", "o"))
    with pytest.raises(Unauthorized, match="several keys"):
        authority.caller(two)
    again = [("authorization", "Bearer w"), ("authorization", "bearer w"), ("x-api-key", "w")]
    assert authority.caller(headers(*again)).name == "web"


def test_until_the_keys_are_read_only_the_admin_token_is_known() -> None:
    """Other callers get NotReady, since their keys may be right."""
    authority = Authority(KeyRing("secret"), asks_callers=True)
    assert authority.caller(bearer("secret")).name == "admin"
    with pytest.raises(NotReady):
        authority.caller(bearer("w"))


def test_open_routes_show_what_the_caller_may_see() -> None:
    """A missing or wrong key shows no models; without required keys all are shown."""
    authority = Authority(ring(key("web", "w", models=("iris",))), asks_callers=True)
    nothing = frozenset[str]()
    cases: list[tuple[Credentials, frozenset[str] | None]] = [
        (NOTHING, nothing),
        (bearer("guess"), nothing),
        (bearer("w", "secret"), nothing),
        (bearer("w"), frozenset({"iris"})),
        (bearer("secret"), None),
    ]
    for sent, models in cases:
        assert authority.visible(sent) == models
    assert operator().visible(NOTHING) is None


# --- Certificates


def certified() -> Authority:
    """A server whose file names certificates, with keys and without them."""
    keys = ring(
        ApiKey("web", certificate="web.internal", models=("iris",)),
        key("both", "b", certificate="spiffe://example/both"),
        ApiKey("ops", certificate="ops.internal", admin=True),
    )
    return Authority(keys, asks_callers=True, metrics_key="m")


def test_a_caller_is_known_by_one_of_the_names_in_its_certificate() -> None:
    """Exactly, and whatever other names are there; an entry may have a key as well."""
    authority = certified()
    assert authority.caller(certificate("web.internal", "web")).name == "web"
    assert authority.visible(certificate("web.internal")) == frozenset({"iris"})
    assert authority.caller(certificate("spiffe://example/both")).name == "both"
    assert authority.caller(bearer("b")).name == "both"


@pytest.mark.parametrize(
    "names", [(), ("WEB.internal",), ("internal",), ("web.internal", "ops.internal")]
)
def test_a_certificate_of_nobody_or_of_several_is_refused(names: tuple[str, ...]) -> None:
    """It sees no models, also on open routes."""
    authority = certified()
    with pytest.raises(Unauthorized, match="no caller, or more than one"):
        authority.caller(certificate(*names))
    assert authority.visible(certificate(*names)) == frozenset()


def test_a_key_is_worth_more_than_a_certificate() -> None:
    """A proxy has one connection for many callers; a wrong key is not made right by it."""
    authority = certified()
    web = frozenset({"web.internal"})
    assert authority.caller(Credentials(frozenset({"b"}), web)).name == "both"
    for wrong in ({"guess"}, {"b", "secret"}):
        with pytest.raises(Unauthorized):
            authority.caller(Credentials(frozenset(wrong), web))


def test_a_certificate_makes_an_operator() -> None:
    """A caller whose certificate is not an admin's gets an error that names the admin token."""
    authority = certified()
    authority.check_operator(certificate("ops.internal"))
    authority.check_metrics(certificate("ops.internal"))
    with pytest.raises(Unauthorized, match="admin token"):
        authority.check_operator(certificate("web.internal"))


def test_without_a_file_any_certificate_will_do() -> None:
    """Its holder sees every model and is not an operator; other callers need the admin token."""
    authority = Authority(ring(), asks_callers=True, certified=Caller("certificate"))
    for sent in (certificate("web.internal"), certificate()):
        assert authority.caller(sent).name == "certificate"
        assert authority.visible(sent) is None
        with pytest.raises(Unauthorized):
            authority.check_operator(sent)
    with pytest.raises(Unauthorized, match="needs a client certificate"):
        authority.caller(NOTHING)
    assert authority.caller(bearer("secret")).admin


# --- Tokens


def vouched_for() -> Authority:
    """A server with an issuer, where alice is a caller and olga an operator."""
    keys = KeyRing(issuer=Issuer(ISSUER, AUDIENCE))
    keys.trust(parse_jwks(jwks(), "jwks.json"))
    alice = ApiKey("alice", subject="alice", models=("iris",))
    keys.follow([alice, ApiKey("olga", subject="olga", admin=True)])
    return Authority(keys, asks_callers=True, metrics_key="m.e.trics")


def test_a_token_that_is_refused_is_counted_as_a_wrong_key() -> None:
    """The reason is reported, also for a token that has expired; a good one is known until then."""
    authority = vouched_for()
    until = int(time.time()) + 60
    identity = authority.identify(bearer(token(claims(exp=until))))
    assert (identity.caller.name, identity.until) == ("alice", until)
    with pytest.raises(Unauthorized, match="the token has expired"):
        authority.identify(bearer(token(claims(exp=1))))
    assert str(authority.expired()) == "the token has expired"
    assert (authority._keys.missing, authority._keys.wrong) == (0, 2)


def test_a_token_that_is_refused_sees_and_operates_nothing() -> None:
    """Its holder sees no models, and operator and metrics checks report why it was refused."""
    authority, expired = vouched_for(), bearer(token(claims(sub="olga", exp=1)))
    assert authority.visible(bearer(token())) == frozenset({"iris"})
    assert authority.visible(expired) == frozenset()
    authority.check_operator(bearer(token(claims(sub="olga"))))
    authority.check_metrics(bearer(token(claims(sub="olga"))))
    authority.check_metrics(bearer("m.e.trics"))
    for check in (authority.check_metrics, authority.check_operator):
        with pytest.raises(Unauthorized, match="the token has expired"):
            check(expired)
    with pytest.raises(Unauthorized, match="the metrics key is wrong"):
        authority.check_metrics(bearer(token()))
    with pytest.raises(Forbidden, match="not an admin"):
        authority.check_operator(bearer(token()))


# --- Metrics


def test_metrics_are_open_unless_they_have_a_key() -> None:
    """Metrics without a key are open, also if callers need keys."""
    operator().check_metrics(NOTHING)
    Authority(ring(), asks_callers=True).check_metrics(NOTHING)


def test_metrics_take_their_key_or_an_operators() -> None:
    """A key of a caller who is not an admin is refused."""
    keys = ring(key("web", "w"), key("ops", "o", admin=True))
    authority = Authority(keys, asks_callers=True, metrics_key="m")
    for good in ("m", "o", "secret"):
        authority.check_metrics(bearer(good))
    for sent in (NOTHING, bearer("w"), bearer("mm"), bearer("m", "w"), certificate("w")):
        with pytest.raises(Unauthorized):
            authority.check_metrics(sent)


# --- Headers


def test_only_bearer_has_a_token() -> None:
    """A header of any other scheme does not have a token, whatever its value."""
    assert bearer_token("Bearer a b") == "a b"
    assert bearer_token("Digest a") is None


def test_keys_are_read_from_two_headers_only() -> None:
    """Empty ones are none, and another scheme does not hide the key in the other header."""
    pairs = [("cookie", "x"), ("x-api-key", "  "), ("authorization", "Basic eA==")]
    assert sent_keys(pairs) == frozenset()
    assert sent_keys([*pairs, ("x-api-key", "k")]) == {"k"}
