"""The answers of one version by their inputs, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from secrets import token_bytes

import numpy as np

from cohort.batching import Outputs
from cohort.response_cache.counts import CacheCounts
from cohort.tensors import Array, Arrays, content_of, held_bytes

AS_IT_IS = 512
"""Bytes of an input that are a part of the key; of longer ones a digest is."""

HASHED_AT_ONCE = 1 << 16
"""Bytes of inputs whose key is made on the event loop, by `tagger`: 6 µs. More are hashed on a
thread by SHA-256, which takes seven times as long but lets other threads go on.
"""

ENTRY_BYTES = 320
"""What an entry takes besides its outputs and its key."""

INPUT_BYTES = 300
"""What an input takes in a key, besides its content."""

Key = tuple[object, ...]
"""What inputs are kept by: name, datatype, shape and content of one, or such a tuple for each."""


def key_of(inputs: Arrays) -> Key:
    """The names, datatypes, shapes and contents of inputs, in their order. From any thread."""
    if len(inputs) == 1:
        ((name, array),) = inputs.items()
        return _part(name, array)
    return tuple([_part(name, array) for name, array in inputs.items()])


def _part(name: str, array: Array) -> Key:
    dtype = array.dtype
    if dtype.hasobject:
        content = content_of(array)
    elif array.nbytes > HASHED_AT_ONCE:  # not copied
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return name, dtype.num, array.shape, sha256(flat.data).digest()
    else:
        content = array.tobytes()
    if len(content) > AS_IT_IS:
        content = tagger()(content) if len(content) <= HASHED_AT_ONCE else sha256(content).digest()
    return name, dtype.num, array.shape, content


def _size_of(key: Key) -> int:
    content = key[-1]
    if isinstance(content, bytes):
        return INPUT_BYTES + len(content)
    return sum([INPUT_BYTES + len(part[-1]) for part in key])  # type: ignore[index, misc]


@cache
def tagger() -> Callable[[bytes], bytes]:
    """What makes digests of 16 bytes: the tag of AES-GCM by a key that this process drew.

    Who does not know the key finds no two contents of one tag: for any two the chance is 2^-116.
    The first call imports a library; call it while a model loads.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 7 MB, which only caches need

    encrypt, nonce = AESGCM(token_bytes(16)).encrypt, bytes(12)
    return lambda content: encrypt(nonce, b"", content)


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
        size, kept = ENTRY_BYTES + _size_of(key), []
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
