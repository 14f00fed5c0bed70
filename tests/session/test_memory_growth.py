"""The growth of the process's memory during a piece of work."""

from __future__ import annotations

from cohort.session.memory_growth import MemoryGrowth


def test_what_is_done_at_once_shares_what_the_process_grew_by() -> None:
    """Nothing is counted twice: the shares add up to all of it."""
    resident = iter([100, 130, 170, 180])
    growth = MemoryGrowth(lambda: next(resident))
    with growth.measured() as first, growth.measured() as second:
        pass
    assert (first.bytes, second.bytes) == (30 + 20 + 10, 20)


def test_what_has_shrunk_the_process_took_nothing() -> None:
    """Other memory was given back at the same time."""
    resident = iter([100, 80])
    with MemoryGrowth(lambda: next(resident)).measured() as growth:
        pass
    assert growth.bytes == 0
