"""Penalties for tokens that occurred before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cohort.generation import Sampling


def penalises(sampling: Sampling) -> bool:
    """Return True if tokens that occurred have other logits."""
    return (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
    )


class SeenTokens:
    """The tokens of a prompt and its answer, and how often each occurred in the answer.

    prompt: The ids of the prompt's tokens.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        unique = np.unique(np.asarray(prompt, np.int64))
        self._place = {token: i for i, token in enumerate(unique.tolist())}
        self._tokens: NDArray[np.int64] = np.resize(unique, max(2 * len(unique), 16))
        self._counts: NDArray[np.float32] = np.zeros(len(self._tokens), np.float32)

    def add(self, token: int) -> None:
        """Count a token of the answer."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * place)
            self._counts = np.concatenate([self._counts, np.zeros(place, np.float32)])
        self._tokens[place] = token
        self._counts[place] += 1

    def penalise(self, logits: NDArray[np.float32], sampling: Sampling) -> None:
        """Change the logits of the tokens."""
        count = len(self._place)
        tokens, counts = self._tokens[:count], self._counts[:count]
        inside = tokens < len(logits)
        if not inside.all():
            tokens, counts = tokens[inside], counts[inside]
        values = logits[tokens]
        if sampling.repetition_penalty != 1:
            penalty = np.float32(sampling.repetition_penalty)
            values = np.where(values > 0, values / penalty, values * penalty)
        values -= counts * np.float32(sampling.frequency_penalty)
        values -= (counts > 0) * np.float32(sampling.presence_penalty)
        logits[tokens] = values
