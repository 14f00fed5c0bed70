"""How many connections each address has."""

from __future__ import annotations

import socket
from collections import Counter

NETWORK_BYTES = 8
"""Of an IPv6 address: who has one has all of its /64. https://www.rfc-editor.org/rfc/rfc4291#section-2.5.4"""


class Addresses:
    """Counts connections by address, those of IPv6 by network; any number without one.

    maximum: How many one may have; None: any number.
    """

    def __init__(self, maximum: int | None = None) -> None:
        self.maximum = maximum
        self._counts: Counter[str | bytes] = Counter()

    def enter(self, address: str | bytes) -> bool:
        """Count a connection; whether its address may have it. `leave` is called either way."""
        self._counts[address] += 1
        return self.maximum is None or not address or self._counts[address] <= self.maximum

    def leave(self, address: str | bytes) -> None:
        """Count no more a connection."""
        self._counts[address] -= 1
        if self._counts[address] <= 0:
            del self._counts[address]

    def count(self, address: str | bytes) -> int:
        """How many connections an address has."""
        return self._counts[address]


def address_of(peer: object) -> str | bytes:
    """What a connection from `peer`, a host and more, counts for; "" where it has no address."""
    host = str(peer[0]) if isinstance(peer, tuple) else ""
    if ":" not in host:
        return host
    try:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host
    mapped = packed.startswith(b"\0" * 10 + b"\xff\xff")
    return socket.inet_ntoa(packed[12:]) if mapped else packed[:NETWORK_BYTES]
