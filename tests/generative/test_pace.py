"""The tokens of prompts that a step computes next to answers."""

from __future__ import annotations

import pytest

from cohort.generative.pace import SAVED_STEPS, Pace

STEP, FIXED, EACH = 0.005, 0.001, 0.0001


def seconds(tokens: int) -> float:
    return FIXED + tokens * EACH


def computed(pace: Pace, steps: int) -> list[int]:
    """Compute a prompt without end next to answers, and return the tokens of each step."""
    found = []
    for _ in range(steps):
        found.append(tokens := pace.tokens())
        pace.learn(tokens, seconds(tokens), STEP)
    return found


def test_long_prompts_at_most_double_the_time_of_steps() -> None:
    """Each part takes as long as the answers' tokens, although parts have a fixed cost."""
    found = computed(Pace(8, 512), 60)
    assert found[0] == 8
    assert sum(map(seconds, found)) <= (60 + SAVED_STEPS) * STEP
    assert seconds(found[-1]) == pytest.approx(STEP, rel=0.2)


def test_a_prompt_after_steps_without_one_uses_their_time() -> None:
    """It gets the time of the last few such steps at once, and no more after them."""
    pace = Pace(8, 512)
    computed(pace, 60)
    for _ in range(50):
        pace.learn(0, 0.0, STEP)
    found = computed(pace, 10)
    assert seconds(found[0]) == pytest.approx((1 + SAVED_STEPS) * STEP, rel=0.2)
    assert sum(map(seconds, found)) <= (10 + SAVED_STEPS) * STEP


@pytest.mark.parametrize(("step", "tokens"), [(1e-6, 8), (10.0, 512)])
def test_parts_have_bounds(step: float, tokens: int) -> None:
    """A part has at least the unit, and at most the maximum."""
    pace = Pace(8, 512)
    for _ in range(100):
        pace.learn(pace.tokens(), 0.001, step)
    assert pace.tokens() == tokens
