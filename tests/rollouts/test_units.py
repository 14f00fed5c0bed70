"""Which outcomes count, and which count as one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import rollouts
from cohort.rollouts.judgement import Counts, Evidence
from cohort.rollouts.units import CALLER_SECONDS, MAX_CALLERS, SLOT_SECONDS, Callers, OutcomeStream


def admitted(outcomes: list[tuple[float, bool]]) -> list[float]:
    """When a caller with these outcomes counted."""
    callers = Callers()
    return [at for at, bad in outcomes if callers.admit("one", at, bad=bad)]


def test_a_caller_counts_once_in_a_while() -> None:
    """This holds for all outcomes; another caller counts separately."""
    assert admitted([(0, False), (1, True), (1.9, False), (2.0, False), (5, True)]) == [0, 2.0, 5]
    callers = Callers()
    assert callers.admit(1, 0.0, bad=False)
    assert callers.admit(2, 0.0, bad=False)


def test_a_repetition_of_a_failure_never_counts() -> None:
    """Its success does not count either, though its turn has come; a later failure does."""
    assert admitted([(0, False), (1.8, True), (2.0, True), (2.4, False), (2.5, False)]) == [0, 2.5]
    assert admitted([(number * 0.5, True) for number in range(9)]) == [0, 2, 4]


@given(
    st.lists(
        st.tuples(st.floats(0, 1, allow_subnormal=False), st.booleans(), st.integers(0, 2)),
        max_size=80,
    )
)
def test_whether_an_outcome_counts_is_known_before_it(
    steps: list[tuple[float, bool, int]],
) -> None:
    """This makes the test valid; and no caller counts twice within CALLER_SECONDS."""
    callers, other, now = Callers(), Callers(), 0.0
    counted: dict[int, list[float]] = {}
    for wait, bad, caller in steps:
        now += wait
        probe = Callers()
        probe._seen = other._seen.copy()
        admits = callers.admit(caller, now, bad=bad)
        assert probe.admit(caller, now, bad=not bad) == admits
        other.admit(caller, now, bad=bad)
        if admits:
            counted.setdefault(caller, []).append(now)
    for times in counted.values():
        assert all(later - one >= CALLER_SECONDS for one, later in pairwise(times))


def test_callers_are_bounded() -> None:
    """The least recently seen caller is forgotten."""
    callers = Callers()
    for number in range(MAX_CALLERS):
        callers.admit(number, 0.0, bad=False)
    assert not callers.admit(0, 1.0, bad=False)
    callers.admit(MAX_CALLERS, 1.0, bad=False)
    assert not callers.admit(0, 1.0, bad=False)
    assert callers.admit(1, 1.0, bad=False)
    assert len(callers._seen) == MAX_CALLERS


def test_outcomes_of_one_slot_are_one_unit() -> None:
    """The unit is the share of bad outcomes; all outcomes are counted."""
    stream = OutcomeStream()
    for number in range(16):
        stream.count(baseline=False, bad=number < 4, now=5.0)
        stream.count(baseline=True, bad=False, now=5.0 + number * SLOT_SECONDS * 1.01)
    stream.weigh(0.01)
    assert (stream.evidence.baseline, stream.evidence.variant) == (Counts(16, 0), Counts(1, 0.25))
    assert (stream.baseline, stream.variant) == (Counts(16, 0), Counts(16, 4))


def test_units_of_one_side_wait_for_the_other() -> None:
    """Both then form one block, which is weighed once."""
    stream = OutcomeStream()
    for at in (1.0, 2.0, 3.0):
        stream.count(baseline=True, bad=at > 1, now=at)
    stream.weigh(0.01)
    assert stream.evidence == Evidence()
    stream.count(baseline=False, bad=True, now=3.0)
    for _ in range(2):
        stream.weigh(0.01)
        assert (stream.evidence.baseline, stream.evidence.variant) == (Counts(3, 2), Counts(1, 1))


@pytest.mark.parametrize(("bad", "unit"), [(True, Counts(1, 0.5)), (False, Counts(1, 0))])
def test_a_unit_waits_for_a_failure_that_is_checked(bad: bool, unit: Counts) -> None:
    """The check decides if the unit includes it."""
    stream = OutcomeStream()
    stream.count(baseline=True, bad=False, now=1.0)
    stream.count(baseline=False, bad=False, now=1.0)
    held = stream.hold(baseline=False, now=1.0)
    stream.weigh(0.01)
    assert stream.evidence == Evidence()
    stream.release(held, bad=bad)
    stream.weigh(0.01)
    assert stream.evidence.variant == unit


def test_a_unit_without_an_outcome_is_none() -> None:
    """Its only failure was not the version's."""
    stream = OutcomeStream()
    stream.count(baseline=True, bad=False, now=1.0)
    stream.release(stream.hold(baseline=False, now=1.0), bad=False)
    stream.weigh(0.01)
    assert stream.evidence == Evidence()


@pytest.mark.parametrize("kind", range(len(rollouts.false_alarms())))
def test_good_canaries_stay(kind: int) -> None:
    """A sample of the table in docs/reports/guard.md at the limit: no canary is rolled back."""
    _, _, at_limit = rollouts.false_alarms()[kind]
    assert all(rollouts.rolled_back_after(at_limit, seed) is None for seed in range(3))


def test_bad_canaries_go() -> None:
    """All that fail a hundred or ten times as often as they may."""
    for _, case, *_ in rollouts.power()[:2]:
        assert all(rollouts.rolled_back_after(case, seed) is not None for seed in range(3))
