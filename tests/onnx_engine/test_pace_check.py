"""A profile is stale only if it was far off at every check."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cohort.onnx_engine.pace_check import (
    CHECKS,
    FACTOR,
    FIRST_PAUSE_SECONDS,
    MATTERS_SECONDS,
    PaceCheck,
)
from cohort.registry import CHECK_SECONDS

SECONDS = 0.01


def check(
    pace_check: PaceCheck, paces: list[float], seconds: float = SECONDS, start: float = 0.0
) -> int:
    """Check each of `paces`; return the number of stale profiles."""
    return sum(
        bool(pace_check.check(pace, seconds, start + number * CHECK_SECONDS))
        for number, pace in enumerate(paces)
    )


def paces(least: float, most: float) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(least, most), min_size=CHECKS, max_size=CHECKS, unique=True)


@given(far=paces(FACTOR, 100) | paces(0.001, 1 / FACTOR))
def test_a_pace_that_is_always_far_off_is_a_doubt(far: list[float]) -> None:
    """Too slow or too fast, after two minutes of runs."""
    assert check(PaceCheck(), far) == 1
    assert check(PaceCheck(), far[:-1]) == 0


@given(far=paces(FACTOR, 100), near=st.floats(0.4, 2.9), place=st.integers(0, CHECKS - 1))
def test_one_look_that_is_near_acquits(far: list[float], near: float, place: int) -> None:
    """The machine was busy at the others, which makes runs longer."""
    assert check(PaceCheck(), [*far[:place], near, *far[place + 1 :]]) == 0


def test_looks_without_runs_do_not_count() -> None:
    """A version without requests shows nothing."""
    assert check(PaceCheck(), [5.0] * 1000) == 0


@given(far=paces(FACTOR, 100))
def test_what_decides_nothing_is_no_doubt(far: list[float]) -> None:
    """A run of 20 µs takes thrice as long after a pause as in a loop."""
    assert check(PaceCheck(), far, MATTERS_SECONDS / 200) == 0


def count_stale(*, right: bool) -> int:
    """Return the stale profiles of a day on which runs take five times as long as profiled."""
    pace_check, stale = PaceCheck(), 0
    for number in range(int(86_400 / CHECK_SECONDS)):
        if pace_check.check(5 + number / 1e6, SECONDS, number * CHECK_SECONDS):
            stale += 1
            pace_check.remeasured(SECONDS, SECONDS if right else SECONDS * 5)
    return stale


def test_a_profile_that_was_right_is_doubted_less_and_less() -> None:
    """Its inputs are unlike those of callers, say: the pace is there for that."""
    assert count_stale(right=True) <= 10
    assert 100 < count_stale(right=False) <= 86_400 / FIRST_PAUSE_SECONDS
