"""When a profile is doubted: where it was far off at every look, and at no other time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cohort.onnx_engine.doubt import FACTOR, FIRST_PAUSE_SECONDS, LOOKS, MATTERS_SECONDS, Doubt
from cohort.registry import LOOK_SECONDS

SECONDS = 0.01


def look(doubt: Doubt, paces: list[float], seconds: float = SECONDS, start: float = 0.0) -> int:
    """Look at each of `paces`; the number of doubts."""
    return sum(
        bool(doubt.look(pace, seconds, start + number * LOOK_SECONDS))
        for number, pace in enumerate(paces)
    )


def paces(least: float, most: float) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(least, most), min_size=LOOKS, max_size=LOOKS, unique=True)


@given(far=paces(FACTOR, 100) | paces(0.001, 1 / FACTOR))
def test_a_pace_that_is_always_far_off_is_a_doubt(far: list[float]) -> None:
    """Too slow or too fast, after two minutes of runs."""
    assert look(Doubt(), far) == 1
    assert look(Doubt(), far[:-1]) == 0


@given(far=paces(FACTOR, 100), near=st.floats(0.4, 2.9), place=st.integers(0, LOOKS - 1))
def test_one_look_that_is_near_acquits(far: list[float], near: float, place: int) -> None:
    """The machine was busy at the others, which makes runs longer."""
    assert look(Doubt(), [*far[:place], near, *far[place + 1 :]]) == 0


def test_looks_without_runs_do_not_count() -> None:
    """A version without requests shows nothing."""
    assert look(Doubt(), [5.0] * 1000) == 0


@given(far=paces(FACTOR, 100))
def test_what_decides_nothing_is_no_doubt(far: list[float]) -> None:
    """A run of 20 µs takes thrice as long after a pause as in a loop."""
    assert look(Doubt(), far, MATTERS_SECONDS / 200) == 0


def count_doubts(*, right: bool) -> int:
    """Count the doubts of a day on which runs take five times as long as in the profile."""
    doubt, doubts = Doubt(), 0
    for number in range(int(86_400 / LOOK_SECONDS)):
        if doubt.look(5 + number / 1e6, SECONDS, number * LOOK_SECONDS):
            doubts += 1
            doubt.settle(SECONDS, SECONDS if right else SECONDS * 5)
    return doubts


def test_a_profile_that_was_right_is_doubted_less_and_less() -> None:
    """Its inputs are unlike those of callers, say: the pace is there for that."""
    assert count_doubts(right=True) <= 10
    assert 100 < count_doubts(right=False) <= 86_400 / FIRST_PAUSE_SECONDS
