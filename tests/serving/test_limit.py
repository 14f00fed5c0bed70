"""The limit of requests in progress."""

from __future__ import annotations

import pytest

from cohort.errors import Overloaded
from cohort.serving.limit import ConcurrencyLimit


def test_leases_and_bodies_being_read_count_alike() -> None:
    """The sum of both stays within the maximum."""
    limit = ConcurrencyLimit(3)
    limit.leases, limit.reading = 1, 1
    limit.check()
    limit.reading = 2
    with pytest.raises(Overloaded, match="3 requests in progress"):
        limit.check()


def test_a_group_needs_room_for_all_its_requests() -> None:
    """The last free place is not enough for two."""
    limit = ConcurrencyLimit(3)
    limit.leases = 1
    limit.check(2)
    limit.leases = 2
    with pytest.raises(Overloaded):
        limit.check(2)


def test_lower_priorities_are_refused_first() -> None:
    """Each has a part of the limit, and the highest one more than all of it."""
    limit = ConcurrencyLimit(4)
    for priority, most in ((-1, 2), (0, 4), (1, 6)):
        limit.leases = most - 1
        limit.check(1, priority)
        assert limit.room_for(priority) == 1
        limit.leases = most
        assert limit.room_for(priority) == 0
        with pytest.raises(Overloaded):
            limit.check(1, priority)
