"""The tokens of prompts that a step computes next to the tokens of answers."""

from __future__ import annotations

from cohort.generative.planning import PromptBudget

NEW = 0.2
"""The weight of a new duration in an estimate."""

SHARE = 0.75
"""Maximum seconds of prompts for each second of the answers that wait for them, on average."""

PART_STEPS = 1.75
"""The time of a part of a long prompt, in steps.

Shorter parts cost more per token, and longer ones delay answers.
"""

SAVED_STEPS = 40.0
"""Maximum time that short prompts may use from steps before them, in steps.

It is enough for one that joins each of a full batch's answers.
"""

PROPORTIONAL = 0.05
"""The weight of the assumption that a part's duration is proportional to its tokens."""


class Pace:
    """Lets prompts take a share of the time that answers take, on average.

    Each step of answers saves time for prompts, and prompts are computed once enough is saved.
    Short prompts may use what was saved in many steps, and are whole in one. Parts of long prompts
    only use the steps since the prompt before them, so fewer than half of the steps have one.

    A run of a prompt takes a fixed time, and one for each token. A line through recent ones gives
    both.

    unit, most: The minimum and the maximum of tokens.
    """

    def __init__(self, unit: int, most: int) -> None:
        self._unit, self._most = unit, most
        self._step = self._saved = self._saved_for_part = 0.0  # seconds
        self._means: list[float] = []  # over runs; see `learn`

    def beside_answers(self) -> PromptBudget:
        """Return the budget of the next step, whose answers wait for it."""
        part = PART_STEPS * self._step
        tokens = self._tokens(part)
        return PromptBudget(
            tokens if self._saved_for_part >= part else 0, tokens if self._saved >= part else 0
        )

    def learn(self, tokens: int, seconds: float, step: float) -> None:
        """Learn from a step.

        tokens, seconds: The tokens of prompts, and their duration.
        step: The duration of the next tokens of answers; 0.0 if there were none.
        """
        if tokens:
            new = tokens, seconds, tokens * tokens, tokens * seconds
            old = self._means or new
            self._means = [a + NEW * (b - a) for a, b in zip(old, new, strict=True)]
        if step:
            if not self._step:
                self._step, self._saved = step, SAVED_STEPS * step
            self._step += NEW * (step - self._step)
            most = SAVED_STEPS * self._step
            more = SHARE * self._step - (seconds if tokens else 0.0)
            self._saved = min(max(self._saved + more, -most), most)
            part = self._saved_for_part + more
            self._saved_for_part = min(max(part, -most), PART_STEPS * self._step)

    def _tokens(self, available: float) -> int:
        """Return the tokens that take this time, in seconds."""
        if not self._means:
            return self._unit
        tokens, seconds, squares, products = self._means
        proportional = PROPORTIONAL * tokens
        each = products - tokens * seconds + proportional * seconds
        each /= squares - tokens * tokens + proportional * tokens
        each = max(each, PROPORTIONAL * seconds / tokens, 1e-9)
        fixed = max(seconds - each * tokens, 0.0)
        return min(max(int((available - fixed) / each), self._unit), self._most)
