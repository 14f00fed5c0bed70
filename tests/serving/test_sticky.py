"""Where a request's sticky key is found."""

from __future__ import annotations

import pytest

from cohort.serving import RequestContext, Sticky

NOTHING: dict[str, str] = {}


def test_a_header_is_found_by_its_name() -> None:
    """Parameters are not read; a header that was not sent gives no key."""
    sticky = Sticky(header="x-user-id")
    parameters = {"x-user-id": "bob"}
    assert RequestContext(headers={"x-user-id": "ada"}).key_of(sticky, parameters) == "ada"
    assert RequestContext().key_of(sticky, parameters) is None


def test_a_request_id_may_be_the_key() -> None:
    """This holds even if a protocol keeps it separate from the headers."""
    sticky = Sticky(header="x-request-id")
    assert RequestContext(request_id="a-1").key_of(sticky) == "a-1"
    assert RequestContext(headers={"x-request-id": "b"}).key_of(sticky) == "b"


@pytest.mark.parametrize(
    ("value", "key"), [("ada", "ada"), (7, "7"), (1.5, "1.5"), (True, "true"), (False, "false")]
)
def test_a_parameter_is_a_key_as_json_writes_it(value: object, key: str) -> None:
    """A caller keeps its variant over every protocol."""
    assert RequestContext().key_of(Sticky(parameter="user"), {"user": value}) == key


def test_a_missing_parameter_gives_no_key() -> None:
    """Headers are not read."""
    context = RequestContext(headers={"user": "ada"})
    assert context.key_of(Sticky(parameter="user"), NOTHING) is None
