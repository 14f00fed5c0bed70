"""Who may call, operate and read metrics, decided from what every adapter passes on."""

from __future__ import annotations

import pytest
import structlog

from app.auth import Authority, bearer_token, sent_keys
from app.callers import ApiKey, KeyRing, digest_of
from app.errors import Forbidden, NotReady, Unauthorized


def bearer(token: str) -> frozenset[str]:
    """What a request carries with this header."""
    return sent_keys([("authorization", f"Bearer {token}")])


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
    """Whatever the case of the scheme and the spaces around the token."""
    operator().check_operator(sent_keys([("authorization", sent)]), "load")


@pytest.mark.parametrize("sent", [None, "", "secret", "Basic secret", "Bearer", "Bearer "])
def test_without_a_bearer_token_nobody_is_known(sent: str | None) -> None:
    """The sentence says what to send."""
    pairs = [] if sent is None else [("authorization", sent)]
    with pytest.raises(Unauthorized, match="the header 'Authorization: Bearer <admin token>'"):
        operator().check_operator(sent_keys(pairs), "load")


@pytest.mark.parametrize("sent", ["secre", "secrets", "Secret", "s\u00e9cret", "secret secret"])
def test_a_wrong_token_is_refused_and_not_repeated(sent: str) -> None:
    """All of it has to be equal, and it stands in no sentence."""
    with pytest.raises(Forbidden) as refused:
        operator().check_operator(bearer(sent), "load")
    assert str(refused.value) == "the admin token is wrong"


@pytest.mark.parametrize("sent", ["", "None"])
def test_without_an_admin_token_there_is_no_operator(sent: str) -> None:
    """The sentence says what an operator sets."""
    with pytest.raises(Forbidden, match="COHORT_ADMIN_TOKEN"):
        operator(None).check_operator(bearer(sent), "load")


def test_admins_have_keys_of_their_own() -> None:
    """One with `admin: true` operates, beside the admin token or without one; others do not."""
    authority = Authority(ring(key("ops", "o", admin=True), key("web", "w"), admin_token=None))
    authority.check_operator(bearer("o"), "load")
    with pytest.raises(Forbidden, match="this API key is not an admin's"):
        authority.check_operator(bearer("w"), "load")


def test_the_log_says_which_operator_did_what() -> None:
    """By the name of the key, for each that is let through, and without the key."""
    authority = Authority(ring(key("ops", "o", admin=True)))
    with structlog.testing.capture_logs() as logged:
        authority.check_operator(bearer("o"), "POST /admin/models/iris/load")
        authority.check_operator(bearer("secret"), "POST /admin/models/iris/unload")
        with pytest.raises(Forbidden):
            authority.check_operator(bearer("x"), "POST /admin/models/iris/unload")
    assert [(one["admin"], one["action"]) for one in logged] == [
        ("ops", "POST /admin/models/iris/load"),
        ("admin", "POST /admin/models/iris/unload"),
    ]


def test_an_authority_shows_no_token() -> None:
    """Not in a traceback, not in a log line."""
    assert "secret" not in repr(operator())


# --- Callers


def test_a_caller_is_known_by_its_key() -> None:
    """In either header; the admin token is a key that sees all."""
    authority = Authority(ring(key("web", "w", models=("iris",))), asks_callers=True)
    assert authority.caller(bearer("w")).name == "web"
    assert authority.caller(sent_keys([("x-api-key", " w ")])).models == frozenset({"iris"})
    admin = authority.caller(bearer("secret"))
    assert (admin.name, admin.models, admin.admin) == ("admin", None, True)


def test_without_a_key_or_with_a_wrong_one_nobody_calls() -> None:
    """Both are Unauthorized, counted apart, and repeat nothing that was sent."""
    keys = ring(key("web", "w"))
    authority = Authority(keys, asks_callers=True)
    for sent, said in ((frozenset[str](), "X-Api-Key"), (bearer("guess"), "wrong")):
        with pytest.raises(Unauthorized, match=said) as refused:
            authority.caller(sent)
        assert "guess" not in str(refused.value)
    assert (keys.missing, keys.wrong) == (1, 1)


def test_two_keys_are_refused_although_both_are_right() -> None:
    """What stands in front may have looked at the other one; the same key twice is one key."""
    authority = Authority(ring(key("web", "w"), key("other", "o")), asks_callers=True)
    two = sent_keys([("authorization", "Bearer w"), ("x-api-key", "o")])
    with pytest.raises(Unauthorized, match="several keys"):
        authority.caller(two)
    again = [("authorization", "Bearer w"), ("authorization", "bearer w"), ("x-api-key", "w")]
    assert authority.caller(sent_keys(again)).name == "web"


def test_until_the_keys_are_read_only_the_admin_token_is_known() -> None:
    """Others are told to try again: their keys may be right."""
    authority = Authority(KeyRing("secret"), asks_callers=True)
    assert authority.caller(bearer("secret")).name == "admin"
    with pytest.raises(NotReady):
        authority.caller(bearer("w"))


def test_open_routes_show_what_the_caller_may_see() -> None:
    """Nothing without a key or with a wrong one, and everything where no key is needed."""
    authority = Authority(ring(key("web", "w", models=("iris",))), asks_callers=True)
    nothing = frozenset[str]()
    cases: list[tuple[frozenset[str], frozenset[str] | None]] = [
        (nothing, nothing),
        (bearer("guess"), nothing),
        (bearer("w") | bearer("secret"), nothing),
        (bearer("w"), frozenset({"iris"})),
        (bearer("secret"), None),
    ]
    for sent, models in cases:
        assert authority.visible(sent) == models
    assert operator().visible(frozenset()) is None


# --- Metrics


def test_metrics_are_open_unless_they_have_a_key() -> None:
    """Whether or not callers need one."""
    operator().check_metrics(frozenset())
    Authority(ring(), asks_callers=True).check_metrics(frozenset())


def test_metrics_take_their_key_or_an_operators() -> None:
    """And no caller's."""
    keys = ring(key("web", "w"), key("ops", "o", admin=True))
    authority = Authority(keys, asks_callers=True, metrics_key="m")
    for token in ("m", "o", "secret"):
        authority.check_metrics(bearer(token))
    for sent in (frozenset[str](), bearer("w"), bearer("mm"), bearer("m") | bearer("w")):
        with pytest.raises(Unauthorized):
            authority.check_metrics(sent)


# --- Headers


def test_only_bearer_has_a_token() -> None:
    """Any other scheme has none, whatever follows it."""
    assert bearer_token("Bearer a b") == "a b"
    assert bearer_token("Digest a") is None


def test_keys_are_read_from_two_headers_only() -> None:
    """Empty ones are none, and another scheme does not hide the key in the other header."""
    pairs = [("cookie", "x"), ("x-api-key", "  "), ("authorization", "Basic eA==")]
    assert sent_keys(pairs) == frozenset()
    assert sent_keys([*pairs, ("x-api-key", "k")]) == {"k"}
