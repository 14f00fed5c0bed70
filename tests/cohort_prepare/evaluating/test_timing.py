"""Two functions timed alternately."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from cohort_prepare.evaluating import timing
from cohort_prepare.evaluating.timing import (
    Ratio,
    bound_ratio,
    compare_in_turn,
    time_in_turn,
    widest,
)


class Machine:
    """Work on simulated clocks: its processor time varies by 5 %, and other processes run."""

    def __init__(self) -> None:
        self.random = Random(7)
        self.worked = self.now = 0.0

    def work(self, seconds: float) -> Callable[[], object]:
        def run() -> None:
            taken = seconds * self.random.uniform(1, 1.05)
            self.worked += taken
            self.now += taken + seconds * self.random.expovariate(1)

        return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(timing, "perf_counter", lambda: made.now)
    monkeypatch.setattr(timing, "process_time", lambda: made.worked)
    return made


def test_a_tenth_more_work_is_slower_and_a_tenth_less_faster(machine: Machine) -> None:
    """The verdict does not depend on what else the machine does."""
    assert compare_in_turn(machine.work(0.001), machine.work(0.0011)).ratio.slower
    assert compare_in_turn(machine.work(0.0011), machine.work(0.001)).ratio.faster


def test_the_same_work_is_neither(machine: Machine) -> None:
    """Repeated measurements of the same work find no difference."""
    for _ in range(100):
        ratio = compare_in_turn(machine.work(0.001), machine.work(0.001), budget=0.2).ratio
        assert not ratio.slower
        assert not ratio.faster


def test_two_things_are_timed_as_they_run() -> None:
    """The system's clocks give the seconds of each, and the ratio of their work."""
    found = compare_in_turn(partial(sum, range(2000)), partial(sum, range(200_000)))
    assert min(found.before.fastest, found.after.fastest) > 0
    assert found.ratio.median > 2


def test_each_is_first_in_every_other_round() -> None:
    """What comes second may find caches warm, or the processor hot."""
    ran: list[str] = []
    runs = {name: partial(ran.append, name) for name in "ab"}
    found = time_in_turn(runs, budget=0, least=4)
    assert "".join(ran) == "ab" + "abba" * 2
    assert [one.runs for one in found.values()] == [4, 4]


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
