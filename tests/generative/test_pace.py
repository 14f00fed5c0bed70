"""The tokens of prompts that a step computes next to answers."""

from __future__ import annotations

import pytest

from cohort.generative.pace import PART_STEPS, SAVED_STEPS, SHARE, Pace
from cohort.generative.planning import PromptBudget

STEP, FIXED, EACH = 0.005, 0.001, 0.0001


def seconds(tokens: int) -> float:
    """Return the duration of a run of a prompt."""
    return FIXED + tokens * EACH if tokens else 0.0


def learned(most: int = 512) -> Pace:
    """Return a pace that knows the durations of steps and prompts, and has nothing saved."""
    pace = Pace(8, most)
    for tokens in (8, 16, 32, 64) * 5:
        pace.learn(tokens, seconds(tokens), STEP)
    pace.learn(1, 1.0, STEP)
    for tokens in (8, 16, 32, 64) * 20:
        pace.learn(tokens, seconds(tokens), 0.0)
    return pace


def next_budget(pace: Pace) -> tuple[int, PromptBudget]:
    """Return how many steps have no part of a long prompt, and the budget of the one after."""
    for waited in range(1000):
        if (budget := pace.beside_answers()).part:
            return waited, budget
        pace.learn(0, 0.0, STEP)
    raise AssertionError("no prompt is ever computed")


def test_parts_of_long_prompts_have_a_share_of_the_time() -> None:
    """A long prompt without end takes at most the share, in parts of the same time."""
    pace, steps, prompts = learned(), 0, 0.0
    next_budget(pace)
    for _ in range(100):
        waited, budget = next_budget(pace)
        steps += waited + 1
        assert seconds(budget.part) == pytest.approx(PART_STEPS * STEP, rel=0.2)
        assert seconds(budget.part) <= 2 * STEP
        pace.learn(budget.part, seconds(budget.part), STEP)
        prompts += seconds(budget.part)
    assert prompts <= (SHARE * steps + PART_STEPS) * STEP
    assert prompts >= 0.5 * steps * STEP
    assert steps >= 200  # for 100 parts


def test_short_prompts_use_the_time_of_steps_before_them() -> None:
    """After many steps without prompts they take what was saved, and no more."""
    pace = learned()
    for _ in range(200):
        pace.learn(0, 0.0, STEP)
    taken = 0.0
    while (budget := pace.beside_answers()).whole:
        tokens = min(budget.whole, 64)
        pace.learn(tokens, seconds(tokens), STEP)
        taken += seconds(tokens) - SHARE * STEP
    assert taken == pytest.approx(SAVED_STEPS * STEP, rel=0.2)


def test_a_slow_prompt_delays_others_for_a_bounded_time() -> None:
    """Whatever it took, the next one is computed after a few steps."""
    pace = learned()
    pace.learn(8, 1e6, STEP)
    waited, _ = next_budget(pace)
    assert waited <= (SAVED_STEPS + PART_STEPS) / SHARE + 1


def test_the_first_short_prompts_use_what_could_be_saved() -> None:
    """A model that was idle computes one in each step, but no part of a long one."""
    pace = Pace(8, 128)
    pace.learn(64, seconds(64), 0.0)
    for _ in range(10):
        pace.learn(64, seconds(64), STEP)
        budget = pace.beside_answers()
        assert budget.whole
        assert not budget.part


@pytest.mark.parametrize(("step", "tokens"), [(1e-6, 8), (10.0, 512)])
def test_parts_have_bounds(step: float, tokens: int) -> None:
    """A part has at least the unit, and at most the maximum."""
    pace = Pace(8, 512)
    for _ in range(100):
        part = pace.beside_answers().part
        pace.learn(part, 0.001 if part else 0.0, step)
    found = {pace.beside_answers().part}
    for _ in range(100):
        pace.learn(0, 0.0, step)
        found.add(pace.beside_answers().part)
    assert found - {0} == {tokens}
