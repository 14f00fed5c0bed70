"""What errors say."""

from __future__ import annotations

import pytest

from app import errors
from app.errors import LONGEST_COMPARED, did_you_mean


def test_a_close_name_is_suggested() -> None:
    """Or what is available is listed, where that is short."""
    assert did_you_mean("irs", ["iris", "digits"]) == "; did you mean 'iris'?"
    assert did_you_mean("x", ["iris", "digits"]) == "; available: digits, iris"
    assert did_you_mean("x", map(str, range(9))) == ""


def test_a_long_name_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing takes the square of its length."""
    compared = []
    monkeypatch.setattr(errors, "get_close_matches", lambda name, *_, **__: compared.append(name))
    did_you_mean("x" * LONGEST_COMPARED, ["iris"])
    did_you_mean("x" * (LONGEST_COMPARED + 1), ["iris"])
    assert [len(name) for name in compared] == [LONGEST_COMPARED]
