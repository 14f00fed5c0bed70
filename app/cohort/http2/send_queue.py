"""What a stream has to send: bytes, and views of tensors that are not copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Part = bytes | memoryview

_JOINED_BYTES = 4096
"""Parts up to this size are joined with their neighbours."""


class SendQueue:
    """Parts of messages, in their order.

    size: The bytes of all of them.
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
        """Remove so many bytes, of which there are at least as many; in parts."""
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
        """Remove all."""
        self._parts.clear()
        self.size = 0
