"""The trial of a decoder at load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pytest

from cohort.generative.decoder import Decoder
from cohort.generative.trial import parts_are_exact
from cohort.tensors import Array

Difference = Callable[[int, int], float]
"""The difference of a run's results, by its first token and its tokens."""


class Adding:
    """A decoder whose keys and logits are its tokens, and a difference."""

    length = vocabulary = 512

    def __init__(self, keys: Difference, logits: Difference) -> None:
        self._keys, self._logits = keys, logits
        self._memory = np.zeros(512)

    def prefill(self, slot: int, tokens: Sequence[int], start: int) -> Array:
        stop = start + len(tokens)
        self._memory[start:stop] = np.array(tokens) + self._keys(start, len(tokens))
        return np.array([self._memory[:stop].sum() + self._logits(start, len(tokens))])

    def read(self, slot: int, start: int, stop: int) -> Array:
        return self._memory[start:stop].copy()

    def free(self, slot: int) -> None:
        self._memory[:] = 0


def exact(keys: Difference, logits: Difference) -> bool:
    return parts_are_exact(cast(Decoder, Adding(keys, logits)), 8, 128)


def nothing(start: int, count: int) -> float:
    return 0.0


def test_runs_of_equal_bits_are_exact() -> None:
    """Prompts may then be computed in parts of any length."""
    assert exact(nothing, nothing)


@pytest.mark.parametrize(
    "difference",
    [
        lambda start, count: float(count == 8),
        lambda start, count: float(count > 100),
        lambda start, count: float(start % 16 == 8),
    ],
)
def test_keys_that_depend_on_parts_are_not_exact(difference: Difference) -> None:
    """A part of eight tokens, a long one, or one at another place differs from others."""
    assert not exact(difference, nothing)


@pytest.mark.parametrize("rest", range(2, 10))
def test_logits_that_depend_on_the_last_run_are_not_exact(rest: int) -> None:
    """The rest behind the parts may have two to nine tokens; each is tried."""
    assert not exact(nothing, lambda start, count: float(count == rest))
