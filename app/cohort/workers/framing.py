"""Messages between a worker and its parent: a JSON object and bytes. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any

_SIZES = Struct("!II")

Message = tuple[Mapping[str, Any], bytes]
"""The object, and the bytes with it."""


def pack_message(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return one message in its binary form."""
    text = json.dumps(head).encode()
    return _SIZES.pack(len(text), len(body)) + text + body


class Unpacker:
    """Divides received bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add received bytes; yield the complete messages."""
        self._data += data
        while len(self._data) >= _SIZES.size:
            head, body = _SIZES.unpack_from(self._data)
            start = _SIZES.size + head
            if len(self._data) < start + body:
                return
            message = (
                json.loads(self._data[_SIZES.size : start]),
                bytes(self._data[start : start + body]),
            )
            del self._data[: start + body]
            yield message


def join_bodies(bodies: list[bytes]) -> tuple[list[int], bytes]:
    """Join several bodies; return their sizes, for `split_bodies`, and the joined bytes."""
    return [len(body) for body in bodies], b"".join(bodies)


def split_bodies(sizes: list[int], joined: bytes) -> list[bytes]:
    """Return the bodies that `join_bodies` joined."""
    bodies, start = [], 0
    for size in sizes:
        bodies.append(joined[start : start + size])
        start += size
    return bodies
