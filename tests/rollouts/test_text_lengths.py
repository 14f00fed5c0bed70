"""Differences of texts in a shadow are those of their lengths."""

from __future__ import annotations

import numpy as np
import pytest

from cohort.comparing import SAME_BITS, OutputDifference, Pair
from cohort.rollouts.text_lengths import compare_answers


@pytest.mark.parametrize(
    ("expected", "got", "wanted"),
    [
        (["cat", "dog"], ["cat", "dog"], ("y", False, 0.0, 0.0)),
        (["cat", "dog"], ["cat", "doe"], ("y", True, 0.0, 0.0)),
        (["cat", "dog"], ["cat", "do"], ("y", True, 1.0, 1 / 3)),
        (["cat"], ["cat", "dog"], ("y", True, None, None)),
        ([], [], ("y", False, 0.0, 0.0)),
    ],
)
def test_texts_differ_by_characters(
    expected: list[str], got: list[str], wanted: OutputDifference
) -> None:
    """The largest difference of a pair is given, also relative to the longer text."""
    pair = Pair({"y": np.array(expected, object)}, {"y": np.array(got, object)})
    assert compare_answers([pair], SAME_BITS) == [[wanted]]


def test_numbers_are_compared_as_elsewhere() -> None:
    """Only texts have a length."""
    pair = Pair({"y": np.array([1.0], np.float32)}, {"y": np.array([3.0], np.float32)})
    assert compare_answers([pair], SAME_BITS)[0][0].largest == 2.0
