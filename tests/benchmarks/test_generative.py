"""Figures of the benchmark of language models."""

from __future__ import annotations

from benchmarks.generative.workers import Answered


def test_times_are_counted_from_each_callers_request() -> None:
    """A rate covers the first request to the last token."""
    found = Answered([0.0, 1.0], [[0.5, 0.75], [1.25, 2.0]], 0.1)
    assert found.seconds == 2.0
    assert found.first == [0.5, 0.25]
    assert found.between == [0.25, 0.75]


def test_steps_of_a_late_joiner_are_the_tokens_of_the_others() -> None:
    """Tokens after its request count, up to those that come with its first one."""
    running = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert Answered([0.0, 0.0, 0.25], [running, running, [0.4, 0.5]], 0.1).late_steps == 2
    assert Answered([0.0, 0.0, 0.25], [running, running, [0.9]], 0.1).late_steps == 3
