"""Two things timed beside each other."""

from __future__ import annotations

from collections.abc import Callable

from app.prepare.timing import Ratio, bound_ratio, compare_in_turn, widest


def test_twice_the_work_is_slower_and_half_of_it_faster() -> None:
    """The verdict does not depend on what else the machine does."""
    assert compare_in_turn(_work(2000), _work(4000)).ratio.slower
    assert compare_in_turn(_work(4000), _work(2000)).ratio.faster


def test_the_same_work_is_neither() -> None:
    """However often the same is measured, no difference is found that there is none."""
    for _ in range(5):
        ratio = compare_in_turn(_work(2000), _work(2000), budget=0.2).ratio
        assert not ratio.slower
        assert not ratio.faster


def test_bounds_leave_out_the_outliers() -> None:
    """One round in which something else ran does not widen the bounds of many."""
    ratio = bound_ratio([1.0] * 50 + [9.0] + [1.1] * 50)
    assert (ratio.low, ratio.high) == (1.0, 1.1)
    assert bound_ratio([1.0, 3.0, 2.0]) == Ratio(2.0, 1.0, 3.0)


def test_sessions_that_differ_widen_the_bounds() -> None:
    """What one session shows and another denies is not beyond doubt."""
    ratio = widest([Ratio(1.2, 1.1, 1.3), Ratio(1.0, 0.95, 1.05)])
    assert (ratio.low, ratio.high) == (0.95, 1.3)
    assert not ratio.slower


def _work(count: int) -> Callable[[], object]:
    return lambda: sum(range(count))
