"""The memory budget of requests and responses."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.connections.memory import MemoryBudget, count_bytes
from cohort.errors import InvalidInput, Overloaded


def test_a_request_without_room_is_refused_and_holds_what_it_did() -> None:
    """The error states how much is held, and the limit."""
    budget = MemoryBudget(3 * 2**20)
    hold = budget.hold()
    hold.add(2 * 2**20)
    with pytest.raises(Overloaded, match="use 2 MiB of the 3 MiB"):
        hold.add(2**20 + 1)
    assert (hold.size, budget.used) == (2 * 2**20, 2 * 2**20)
    hold.add(2**20)
    assert budget.used == budget.maximum


def test_what_exists_already_is_counted_beyond_the_maximum() -> None:
    """No more bytes are received until it is sent."""
    budget = MemoryBudget(10)
    with budget.hold() as hold:
        hold.set(25)
        with pytest.raises(Overloaded):
            budget.hold().add(1)
    assert budget.used == 0


def test_an_answer_needs_room_for_itself_or_half_of_all() -> None:
    """One that is larger than half of it can be sent, where others leave half."""
    budget = MemoryBudget(10)
    budget.check_answer(10)
    with budget.hold() as hold:
        hold.set(5)
        budget.check_answer(10)
        hold.set(6)
        budget.check_answer(4)
        with pytest.raises(Overloaded):
            budget.check_answer(5)


def test_an_answer_that_is_larger_than_all_is_refused_for_good() -> None:
    """A retry would not help, so the error states what would."""
    with pytest.raises(InvalidInput, match=r"24 MiB .* 10 MiB .*: send fewer rows"):
        MemoryBudget(10 << 20).check_answer(24 << 20)


def test_a_copy_of_a_hold_is_given_back_by_itself() -> None:
    """It holds as much, whatever becomes of the first."""
    budget = MemoryBudget(10)
    with budget.hold() as hold:
        hold.set(5)
        copy = hold.copy()
        assert budget.used == 10
    assert budget.used == copy.size == 5
    copy.set(0)
    assert budget.used == 0


def test_the_peak_is_that_since_it_was_last_asked_for() -> None:
    """A new peak begins with the bytes held at that time."""
    budget = MemoryBudget(100)
    hold = budget.hold()
    hold.set(70)
    hold.set(20)
    assert budget.take_peak() == 70
    hold.set(0)
    assert (budget.take_peak(), budget.take_peak()) == (20, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=30))
def test_what_is_used_is_the_sum_of_what_is_held(steps: list[tuple[int, int]]) -> None:
    """This holds for any changes of any number of holds."""
    budget = MemoryBudget(100)
    holds = [budget.hold() for _ in range(4)]
    for number, size in steps:
        try:
            holds[number].add(size)
        except Overloaded:
            holds[number].set(size)
        assert budget.used == sum(one.size for one in holds)
    for one in holds:
        one.set(0)
    assert budget.used == 0


def test_arrays_count_by_their_bytes() -> None:
    """The bytes of all arrays are added."""
    assert count_bytes([np.zeros((2, 3), "f4"), np.zeros(5, "i8"), np.float64(1.0)]) == 24 + 40 + 8  # type: ignore[list-item]


def test_texts_count_by_what_they_hold() -> None:
    """The bytes of texts count, not their references: exactly for few, approximately for many."""
    few = np.array([["x" * 1000, "y" * 1000]], object)
    assert 2000 < count_bytes([few]) < 2300
    many = np.array(["x" * (100 if number % 2 else 1000) for number in range(50_000)], object)
    exact = sum(map(sys.getsizeof, many)) + many.nbytes
    assert 0.7 * exact < count_bytes([many]) < 1.3 * exact
    assert count_bytes([np.array([], object)]) == 0
