"""The cached answers of one version by their inputs, bounded in bytes."""

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
"""Maximum bytes of an input that are stored in the key; longer inputs are hashed."""

HASHED_AT_ONCE = 1 << 16
"""Maximum bytes of inputs that are hashed on the event loop, by `tagger` in 6 µs.

Larger inputs are hashed on a thread by SHA-256. That takes seven times as long, but does not block
other threads.
"""

ENTRY_BYTES = 320
"""Bytes of an entry without its outputs and its key."""

INPUT_BYTES = 300
"""Bytes of an input in a key without its content."""

Key = tuple[object, ...]
"""Name, datatype, shape and content of one input, or a tuple of these for several inputs."""


def key_of(inputs: Arrays) -> Key:
    """Return names, datatypes, shapes and contents of inputs, in their order. Thread-safe."""
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
    """Return a function that makes 16-byte digests: AES-GCM tags with a random key per process.

    Two contents have the same tag with probability 2^-116, unless their author knows the key. The
    first call imports a library, so call it while a model loads.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 7 MB, needed only by caches

    encrypt, nonce = AESGCM(token_bytes(16)).encrypt, bytes(12)
    return lambda content: encrypt(nonce, b"", content)


class AnswerStore:
    """An LRU store of answers. Used on the event loop.

    maximum: Maximum bytes of all answers.
    counts: The counts whose `size` it updates.
    """

    def __init__(self, maximum: int, counts: CacheCounts) -> None:
        self._maximum = maximum
        self._counts = counts
        self._answers: OrderedDict[Key, tuple[Outputs, int]] = OrderedDict()
        self._size = 0

    def get(self, key: Key) -> Outputs | None:
        """Return the answer to these inputs, or None if it is not stored."""
        found = self._answers.get(key)
        if found is None:
            return None
        self._answers.move_to_end(key)
        return found[0]

    def put(self, key: Key, outputs: Outputs) -> None:
        """Store an answer, and evict the least recently used ones."""
        size, kept = ENTRY_BYTES + _size_of(key), []
        for array in outputs:
            size += held_bytes(array) if array.dtype.hasobject else array.nbytes
            if size > self._maximum:
                return
            own = array if array.base is None else array.copy()
            own.setflags(write=False)  # in-process callers must not change a shared answer
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
        """Remove all answers."""
        self._answers.clear()
        self._size = self._counts.size = 0
