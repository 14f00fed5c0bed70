"""The choice of the next token of many answers, from the logits of one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from cohort.errors import CohortError, InferenceFailed
from cohort.generation import Sampling
from cohort.tensors import Array


class GuideState(Protocol):
    """The tokens that may follow what was chosen so far."""

    def allowed(self) -> Array:
        """Return a boolean for each token, True if it may be next. Raises InferenceFailed."""

    def accept(self, token: int) -> None:
        """Continue after `token`. Raises InferenceFailed."""


class Chosen(NamedTuple):
    """A chosen token.

    token: Its id.
    logprob: The natural logarithm of its probability; 0 if not asked for.
    top: The most likely tokens and their logprobs, the most likely first; empty if not asked for.
    """

    token: int
    logprob: float = 0.0
    top: Sequence[tuple[int, float]] = ()


class Chooser:
    """The state of the sampling of one choice.

    sampling: The options.
    prompt: The ids of the prompt's tokens.
    choice: The number of the choice, from 0; each has other draws.
    logprobs: The number of most likely tokens to report; None: no logprobs.
    guide: The form of the answer; default: any text.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        *,
        choice: int = 0,
        logprobs: int | None = None,
        guide: GuideState | None = None,
    ) -> None:
        self.sampling = sampling
        self.logprobs = logprobs
        self.guide = guide


def choose(logits: Array, choosers: Sequence[Chooser]) -> list[Chosen | CohortError]:
    """Choose the next token of each row, and record it in the row's chooser.

    logits: FP32 [rows, vocabulary].
    choosers: One for each row.

    A row whose logits are not numbers has an error; it does not affect the other rows.
    """
    return [
        Chosen(int(row.argmax()))
        if np.isfinite(row.max())
        else InferenceFailed("the model's logits are not numbers")
        for row, _ in zip(logits, choosers, strict=True)
    ]
