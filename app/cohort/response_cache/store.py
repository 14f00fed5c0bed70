"""The answers of one version by their inputs, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256

from cohort.batching import Outputs
from cohort.response_cache.counts import CacheCounts
from cohort.tensors import Array, Arrays, content_of, held_bytes

AS_IT_IS = 512
"""Bytes of an input that are a part of the key; of longer ones a digest is."""

ENTRY_BYTES = 600
"""What an entry takes besides its outputs and its key."""

Key = tuple[object, ...]
"""What inputs are kept by."""


def key_of(inputs: Arrays) -> Key:
    """The names, datatypes, shapes and contents of inputs, in their order. From any thread."""
    parts = [_part(name, array) for name, array in inputs.items()]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _part(name: str, array: Array) -> Key:
    dtype = array.dtype
    content = content_of(array) if dtype.hasobject else array.tobytes()
    if len(content) > AS_IT_IS:
        content = sha256(content).digest()  # where the CPU has it, in half the time of blake2b
    return name, dtype.num, array.shape, content


class AnswerStore:
    """Keeps the answers that were asked for last. Used on the event loop.

    maximum: Bytes that they may take.
    counts: Where hits, misses and bytes are counted.
    """

    def __init__(self, maximum: int, counts: CacheCounts) -> None:
        self._maximum = maximum
        self._counts = counts
        self._answers: OrderedDict[Key, tuple[Outputs, int]] = OrderedDict()
        self._size = 0

    def get(self, key: Key) -> Outputs | None:
        """The answer to these inputs; None where there is none."""
        found = self._answers.get(key)
        if found is None:
            return None
        self._answers.move_to_end(key)
        return found[0]

    def put(self, key: Key, outputs: Outputs) -> None:
        """Keep an answer, in the place of those that were not asked for longest."""
        size, kept = ENTRY_BYTES, []
        for array in outputs:
            size += held_bytes(array) if array.dtype.hasobject else array.nbytes
            if size > self._maximum:
                return
            own = array if array.base is None else array.copy()
            own.setflags(write=False)  # callers of this process would write into all answers
            kept.append(own)
        answers = self._answers
        if key in answers:
            self._size -= answers.pop(key)[1]
        answers[key] = kept, size
        self._size += size
        while self._size > self._maximum:
            self._size -= answers.popitem(last=False)[1][1]
        self._counts.size = self._size

    def clear(self) -> None:
        """Forget all of them."""
        self._answers.clear()
        self._size = self._counts.size = 0
