"""The check that a caller moves bytes fast enough."""

from __future__ import annotations

import pytest

from cohort.connections.body_pace import MIN_BYTES_PER_SECOND, WINDOW_SECONDS, Pace


@pytest.mark.parametrize(("missing", "slow"), [(0, False), (1, True)])
def test_a_window_with_too_few_bytes_is_slow(missing: int, slow: bool) -> None:
    """It is judged when the window ends, and not before."""
    pace = Pace()
    moved = int(MIN_BYTES_PER_SECOND * WINDOW_SECONDS) - missing
    assert not pace.is_slow(100.0, 500)
    assert not pace.is_slow(100.0 + WINDOW_SECONDS * 0.99, 500)
    assert pace.is_slow(100.0 + WINDOW_SECONDS, 500 + moved) == slow


def test_each_window_is_judged_by_its_own_bytes() -> None:
    """A fast beginning excuses no stop."""
    pace = Pace()
    pace.is_slow(0.0, 0)
    assert not pace.is_slow(WINDOW_SECONDS, 10**9)
    assert pace.is_slow(2 * WINDOW_SECONDS, 10**9)


def test_a_new_response_begins_a_new_window() -> None:
    """More is unsent than before: fewer bytes have moved."""
    pace = Pace()
    pace.is_slow(0.0, -100)
    assert not pace.is_slow(WINDOW_SECONDS, -(10**9))
    assert pace.is_slow(2 * WINDOW_SECONDS, -(10**9))


def test_a_rest_begins_a_new_window() -> None:
    """No body was in progress before it, so the new window starts without bytes."""
    pace = Pace()
    pace.is_slow(0.0, 0)
    pace.rest()
    assert not pace.is_slow(10 * WINDOW_SECONDS, 0)
