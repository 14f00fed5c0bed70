"""Comparisons of answers that may be texts."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.comparing import Criterion, OutputDifference, Pair, compare


def compare_answers(pairs: Sequence[Pair], criterion: Criterion) -> list[list[OutputDifference]]:
    """Compare as `compare` does; the differences of texts are those of their lengths.

    `largest` is in characters, and `relative` to the longer of two texts.
    """
    found = compare(pairs, criterion)
    return [
        [_with_length(one, pair) for one in differences]
        for pair, differences in zip(pairs, found, strict=True)
    ]


def _with_length(difference: OutputDifference, pair: Pair) -> OutputDifference:
    expected, got = pair.expected.get(difference.output), pair.got.get(difference.output)
    if expected is None or got is None or expected.shape != got.shape:
        return difference
    if expected.dtype != object or got.dtype != object:
        return difference
    largest, relative = 0, 0.0
    for one, other in zip(expected.ravel().tolist(), got.ravel().tolist(), strict=True):
        lengths = len(str(one)), len(str(other))
        apart = abs(lengths[0] - lengths[1])
        largest = max(largest, apart)
        relative = max(relative, apart / max(*lengths, 1))
    return difference._replace(largest=float(largest), relative=relative)
