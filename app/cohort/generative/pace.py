"""The tokens of prompts that a step computes next to the tokens of answers."""

from __future__ import annotations

NEW = 0.2
"""The weight of a new duration in an estimate."""

SAVED_STEPS = 3
"""Maximum steps without prompts whose time a later prompt may use."""

PROPORTIONAL = 0.05
"""The weight of the assumption that a part's duration is proportional to its tokens."""


class Pace:
    """Lets prompts take as long as the next tokens of the answers that wait for them.

    That holds on average: a prompt after steps without one may also use their time. So a short
    prompt has its first token after one step, and many long ones at most double the time of steps.

    A part of a prompt takes a fixed time, and one for each token. A line through recent parts gives
    both.

    unit, most: The minimum and the maximum of tokens.
    """

    def __init__(self, unit: int, most: int) -> None:
        self._unit, self._most = unit, most
        self._step = self._saved = 0.0  # seconds
        self._means: list[float] = []  # over parts; see `learn`

    def tokens(self) -> int:
        """Return the tokens of prompts for the next step."""
        if not self._means:
            return self._unit
        tokens, seconds, squares, products = self._means
        proportional = PROPORTIONAL * tokens
        each = products - tokens * seconds + proportional * seconds
        each /= squares - tokens * tokens + proportional * tokens
        each = max(each, PROPORTIONAL * seconds / tokens, 1e-9)
        fixed = max(seconds - each * tokens, 0.0)
        found = int((self._step + self._saved - fixed) / each)
        return min(max(found, self._unit), self._most)

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
            self._step += NEW * (step - self._step) if self._step else step
            spent = seconds if tokens else 0.0
            saved = self._saved + self._step - spent
            self._saved = min(max(saved, 0.0), SAVED_STEPS * self._step)
