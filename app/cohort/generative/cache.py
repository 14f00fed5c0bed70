"""The memory of keys and values: one place for each sequence, with room for its whole context."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np

from cohort.tensors import Array

PAGE = mmap.PAGESIZE


class CacheMemory:
    """Keys and values of all layers, [slots, heads, length, head_size] each.

    The memory is virtual: the system gives pages when they are first written, and takes them back
    when a slot is freed. So a slot costs what its sequence has written.

    tensors: The arrays, in the order of the decoder's layout.

    count: The number of tensors: two for each layer.
    slots: The number of sequences.
    heads, length, head_size: The shape of one sequence's tensor.
    dtype: Its datatype.
    """

    def __init__(
        self, count: int, slots: int, *, heads: int, length: int, head_size: int, dtype: Any
    ) -> None:
        shape = (slots, heads, length, head_size)
        self._slot_bytes = heads * length * head_size * np.dtype(dtype).itemsize
        self._tensor_bytes = -(-slots * self._slot_bytes // PAGE) * PAGE
        self._memory = _reserve(count * self._tensor_bytes)
        self.tensors: list[Array] = [
            np.frombuffer(
                self._memory, dtype, slots * heads * length * head_size, number * self._tensor_bytes
            ).reshape(shape)
            for number in range(count)
        ]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a slot to another."""
        for tensor in self.tensors:
            tensor[target, :, :length] = tensor[source, :, :length]

    def read(self, slot: int, start: int, stop: int) -> Array:
        """Return a copy of a slot's tokens, [tensors, heads, stop - start, head_size]."""
        return np.stack([tensor[slot, :, start:stop] for tensor in self.tensors])

    def write(self, slot: int, start: int, block: Array) -> None:
        """Write tokens that `read` returned."""
        for tensor, part in zip(self.tensors, block, strict=True):
            tensor[slot, :, start : start + part.shape[1]] = part

    def free(self, slot: int) -> None:
        """Give the memory of a slot back to the system; its content is lost."""
        for number in range(len(self.tensors)):
            start = number * self._tensor_bytes + slot * self._slot_bytes
            stop = (start + self._slot_bytes) // PAGE * PAGE
            start = -(-start // PAGE) * PAGE
            if stop > start:
                _give_back(self._memory, start, stop - start)


LINUX = sys.platform == "linux"

NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python names since 3.13: the size does not count as memory."""


def _reserve(size: int) -> mmap.mmap:
    """Return memory that uses no memory of the machine until it is written."""
    if LINUX:
        # By default, a mapping is shared, and DONTNEED keeps its content.
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    else:
        return mmap.mmap(-1, size)


def _give_back(memory: mmap.mmap, start: int, size: int) -> None:
    if LINUX:
        memory.madvise(mmap.MADV_DONTNEED, start, size)
