"""What errors say."""

from __future__ import annotations

import pytest

from app import errors
from app.errors import LONGEST_COMPARED, DeadlineExceeded, available, did_you_mean


def test_a_close_name_is_suggested() -> None:
    """Or what is available is listed, where that is short."""
    assert did_you_mean("irs", ["iris", "digits"]) == "; did you mean 'iris'?"
    assert did_you_mean("x", ["iris", "digits"]) == "; available: digits, iris"
    assert did_you_mean("x", map(str, range(9))) == ""


def test_what_is_available_is_sorted_and_bounded() -> None:
    """Versions as numbers; the first eight of many."""
    assert available([]) == ""
    assert available([10, 9]) == "; available: 9, 10"
    assert available(range(9)) == "; available: 0, 1, 2, 3, 4, 5, 6, 7, …"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1e-6, "0.001"), (0.05, "50"), (0.15, "150"), (0.0015, "1.5"), (1234.567, "1234567")],
)
def test_a_limit_is_told_as_it_was_given(seconds: float, text: str) -> None:
    """In milliseconds, without an exponent."""
    assert str(DeadlineExceeded(seconds)) == f"no response within {text} ms"


def test_a_long_name_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing takes the square of its length."""
    compared = []
    monkeypatch.setattr(errors, "get_close_matches", lambda name, *_, **__: compared.append(name))
    did_you_mean("x" * LONGEST_COMPARED, ["iris"])
    did_you_mean("x" * (LONGEST_COMPARED + 1), ["iris"])
    assert [len(name) for name in compared] == [LONGEST_COMPARED]
