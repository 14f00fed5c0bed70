"""Who may operate, decided from the text that every adapter passes on."""

from __future__ import annotations

import pytest

from app.auth import Authority, bearer_token
from app.errors import Forbidden, Unauthorized


@pytest.mark.parametrize("sent", ["Bearer secret", "bearer secret", " BEARER   secret "])
def test_the_admin_token_makes_an_operator(sent: str) -> None:
    """Whatever the case of the scheme and the spaces around the token."""
    Authority("secret").check_operator(sent)


@pytest.mark.parametrize("sent", [None, "", "secret", "Basic secret", "Bearer", "Bearer "])
def test_without_a_bearer_token_nobody_is_known(sent: str | None) -> None:
    """The sentence says what to send."""
    with pytest.raises(Unauthorized, match="the header 'Authorization: Bearer <admin token>'"):
        Authority("secret").check_operator(sent)


@pytest.mark.parametrize("sent", ["secre", "secrets", "Secret", "s\u00e9cret", "secret secret"])
def test_a_wrong_token_is_refused_and_not_repeated(sent: str) -> None:
    """All of it has to be equal, and it stands in no sentence."""
    with pytest.raises(Forbidden) as refused:
        Authority("secret").check_operator(f"Bearer {sent}")
    assert str(refused.value) == "the admin token is wrong"


@pytest.mark.parametrize("sent", [None, "Bearer None", "Bearer "])
def test_without_an_admin_token_there_is_no_operator(sent: str | None) -> None:
    """The sentence says what an operator sets."""
    with pytest.raises(Forbidden, match="COHORT_ADMIN_TOKEN"):
        Authority(None).check_operator(sent)


def test_an_authority_shows_no_token() -> None:
    """Not in a traceback, not in a log line."""
    assert "secret" not in repr(Authority("secret"))


def test_only_bearer_has_a_token() -> None:
    """Any other scheme has none, whatever follows it."""
    assert bearer_token("Bearer a b") == "a b"
    assert bearer_token("Digest a") is None
