"""The data that a stream must send: bytes, and views of tensors without copies."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Part = bytes | memoryview

_JOINED_BYTES = 4096
"""Size up to which parts are joined with their neighbours."""


class SendQueue:
    """Parts of messages in order.

    size: Their total size in bytes.
    """

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: deque[memoryview] = deque()
        self.size = 0

    def add(self, parts: Sequence[Part]) -> None:
        """Append a message."""
        small: list[Part] = []
        for part in parts:
            self.size += len(part)
            if len(part) <= _JOINED_BYTES:
                small.append(part)
                continue
            self._join(small)
            self._parts.append(memoryview(part))
        self._join(small)

    def _join(self, small: list[Part]) -> None:
        if small:
            self._parts.append(memoryview(b"".join(small)))
            small.clear()

    def take(self, size: int) -> list[memoryview]:
        """Remove `size` bytes and return them in parts. The queue has at least as many."""
        self.size -= size
        taken = []
        while size:
            part = self._parts[0]
            if len(part) <= size:
                taken.append(self._parts.popleft())
            else:
                taken.append(part[:size])
                self._parts[0] = part[size:]
            size -= len(taken[-1])
        return taken

    def clear(self) -> None:
        """Remove all parts."""
        self._parts.clear()
        self.size = 0
