"""Counts of connections by address."""

from __future__ import annotations

import socket
from collections import Counter

NETWORK_BYTES = 8
"""Bytes of an IPv6 prefix; one customer usually owns a whole /64.

https://www.rfc-editor.org/rfc/rfc4291#section-2.5.4
"""


class Addresses:
    """Counts connections by address, or by network for IPv6. Without an address there is no limit.

    maximum: Maximum per address, or None for no limit.
    """

    def __init__(self, maximum: int | None = None) -> None:
        self.maximum = maximum
        self._counts: Counter[str | bytes] = Counter()

    def enter(self, address: str | bytes) -> bool:
        """Count a connection, and return True if its address is within the limit."""
        self._counts[address] += 1
        return self.maximum is None or not address or self._counts[address] <= self.maximum

    def leave(self, address: str | bytes) -> None:
        """Remove a connection, whether or not it was within the limit."""
        self._counts[address] -= 1
        if self._counts[address] <= 0:
            del self._counts[address]

    def count(self, address: str | bytes) -> int:
        """Return the number of connections of an address."""
        return self._counts[address]


def address_of(peer: object) -> str | bytes:
    """Return the key under which connections from `peer` are counted, or "" without an address."""
    host = str(peer[0]) if isinstance(peer, tuple) else ""
    if ":" not in host:
        return host
    try:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host
    mapped = packed.startswith(b"\0" * 10 + b"\xff\xff")
    return socket.inet_ntoa(packed[12:]) if mapped else packed[:NETWORK_BYTES]
