"""Where a request's sticky key is found."""

from __future__ import annotations

import pytest

from app.data_plane import Sticky, sticky_key

NO_HEADERS: dict[str, str] = {}


def test_a_header_is_found_by_its_name() -> None:
    """Parameters are not looked at; a header that was not sent gives no key."""
    headers = {"x-user-id": "ada"}
    sticky = Sticky(header="x-user-id")
    assert sticky_key(sticky, headers.get, {"x-user-id": "bob"}) == "ada"
    assert sticky_key(sticky, NO_HEADERS.get, {"x-user-id": "bob"}) is None


@pytest.mark.parametrize(
    ("value", "key"), [("ada", "ada"), (7, "7"), (1.5, "1.5"), (True, "true"), (False, "false")]
)
def test_a_parameter_is_a_key_as_json_writes_it(value: object, key: str) -> None:
    """So a caller keeps its variant over every protocol."""
    assert sticky_key(Sticky(parameter="user"), NO_HEADERS.get, {"user": value}) == key


def test_a_missing_parameter_gives_no_key() -> None:
    """Headers are not looked at."""
    assert sticky_key(Sticky(parameter="user"), {"user": "ada"}.get, {}) is None
