"""Keys and values of prompts that are kept, for later prompts that begin alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from cohort.tensors import Array


def name_blocks(tokens: Sequence[int], block: int) -> tuple[bytes, ...]:
    """Return a name for each whole block of a prompt: the digest of all tokens up to its end.

    The last two tokens are in no block. So the last run of a prompt is the same one with and
    without kept blocks. It has more than one token, because single tokens have other kernels.
    """
    whole = max(len(tokens) - 2, 0) // block
    content = np.array(tokens[: whole * block], np.int64).tobytes()
    names, digest, step = [], blake2b(digest_size=16), block * 8
    for start in range(0, whole * step, step):
        digest.update(content[start : start + step])
        names.append(digest.copy().digest())
    return tuple(names)


class Prefixes:
    """Blocks of prompts by name, in the order of their last use.

    A block is only useful behind those before it in its prompt. These count as used after it, so
    they are dropped later.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[bytes, Array] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, name: bytes) -> bool:
        return name in self._blocks

    def find(self, names: Sequence[bytes]) -> list[Array]:
        """Return the blocks that a prompt with these names begins with, and mark them as used."""
        found: list[Array] = []
        for name in names:
            if name not in self._blocks:
                break
            found.append(self._blocks[name])
        for name in reversed(names[: len(found)]):
            self._blocks.move_to_end(name)
        return found

    def count(self, names: Sequence[bytes]) -> int:
        """Return how many blocks `find` would return."""
        return next((i for i, name in enumerate(names) if name not in self._blocks), len(names))

    def add(self, name: bytes, block: Array) -> None:
        """Keep a block."""
        self._blocks[name] = block
        self._blocks.move_to_end(name)

    def drop(self) -> None:
        """Drop the block that was not used for the longest time."""
        self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Drop all blocks."""
        self._blocks.clear()
