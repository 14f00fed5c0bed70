"""Find repeated blocks of nodes in a graph, such as layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FEW = 60
"""Maximum number of nodes that are drawn without folding repeated blocks."""

MIN_FOLDED = 24
"""Minimum number of nodes in all repetitions of a block together."""

MAX_BLOCK_NODES = 600
"""Maximum number of nodes in a repeated block."""


def find_blocks(operators: Sequence[str]) -> list[tuple[int, int, int]]:
    """Find repeated blocks. Return each one's start, its number of nodes and its repetitions.

    Blocks repeat without a gap. The repetition that covers the most nodes is chosen first.
    """
    if len(operators) <= FEW:
        return []
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(one, len(numbers)) for one in operators])
    found: list[tuple[int, int, int, int]] = []
    for length in range(3, min(MAX_BLOCK_NODES, len(codes) // 2) + 1):
        same = np.concatenate([[0], codes[:-length] == codes[length:], [0]]).astype(np.int8)
        starts, ends = (np.flatnonzero(np.diff(same) == step) for step in (1, -1))
        repeated = (ends - starts) // length + 1
        enough = (repeated > 1) & (repeated * length >= MIN_FOLDED)
        for start, times in zip(starts[enough].tolist(), repeated[enough].tolist(), strict=True):
            found.append((length * times, -length, start, times))
    found.sort(reverse=True)
    taken = np.zeros(len(codes), bool)
    blocks = []
    for covered, length, start, times in found:
        if not taken[start : start + covered].any():
            taken[start : start + covered] = True
            blocks.append((start, -length, times))
    return sorted(blocks)
