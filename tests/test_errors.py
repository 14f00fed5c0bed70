"""The texts of errors."""

from __future__ import annotations

import pytest

from cohort import errors
from cohort.errors import (
    MAX_COMPARED,
    DeadlineExceeded,
    ModelNotFound,
    available,
    did_you_mean,
    quoted_names,
)


def test_a_close_name_is_suggested() -> None:
    """If no name is close, a short list of available names is shown."""
    assert did_you_mean("irs", ["iris", "digits"]) == "; did you mean 'iris'?"
    assert did_you_mean("x", ["iris", "digits"]) == "; available: digits, iris"
    assert did_you_mean("x", map(str, range(9))) == ""


def test_what_is_available_is_sorted_and_bounded() -> None:
    """Versions are sorted as numbers; the first eight of many are listed."""
    assert available([]) == ""
    assert available([10, 9]) == "; available: 9, 10"
    assert available(range(9)) == "; available: 0, 1, 2, 3, 4, 5, 6, 7, …"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1e-6, "0.001"), (0.05, "50"), (0.15, "150"), (0.0015, "1.5"), (1234.567, "1234567")],
)
def test_a_limit_is_told_as_it_was_given(seconds: float, text: str) -> None:
    """The limit is in milliseconds, without an exponent."""
    assert str(DeadlineExceeded(seconds)) == f"no response within {text} ms"


def test_listed_names_keep_their_order_and_are_bounded() -> None:
    """Names are quoted; the first eight of many are listed."""
    assert quoted_names(iter([])) == "none"
    assert quoted_names(["b", "a"]) == "'b', 'a'"
    assert quoted_names(map(str, range(9))) == "'0', '1', '2', '3', '4', '5', '6', '7', …"


@pytest.mark.parametrize("known", [1, 100])
def test_a_name_is_compared_with_nothing_where_that_would_take_long(
    known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the square of its length for each name that is known."""
    compared = []
    monkeypatch.setattr(errors, "get_close_matches", lambda name, *_, **__: compared.append(name))
    longest = int((MAX_COMPARED / known) ** 0.5)
    did_you_mean("x" * longest, map(str, range(known)))
    did_you_mean("x" * (longest + 1), map(str, range(known)))
    assert [len(name) for name in compared] == [longest]


@pytest.mark.parametrize("name", ["iris ", "-iris", "", "iris" * 40, "ïris", "iris\n"])
def test_what_cannot_be_a_name_is_told_the_rule(name: str) -> None:
    """The rule replaces the suggestion of a close name."""
    assert "; a name has at most 128" in str(ModelNotFound(name, ["iris"]))
