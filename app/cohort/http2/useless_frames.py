"""Limits on frames that cost work and have no use."""

from __future__ import annotations

from collections import Counter

from cohort.http2.frames import ConnectionFault, ErrorCode
from cohort.http2.outgoing import Outgoing

MAX_USELESS = 2000
"""Maximum per second of pings, resets and empty data."""

MAX_OF_ADDRESS = 4 * MAX_USELESS
"""Maximum per second for all connections of an address. A proxy's address has many clients."""

OWN_SHARE = 100
"""Frames up to which a connection is not closed because of others of its address."""

SETTINGS_LIKE = 20
"""The cost of a SETTINGS frame in useless frames, because it may change the windows of all streams.
"""

BLOCK_BYTES_LIKE_ONE, HELD_BYTES_LIKE_ONE = 1024, 4096
"""Bytes of a header block, and memory of headers, that cost as much as a useless frame."""

SMALL_DATA = 1024
"""Size below which data of a closed stream counts.

Larger data comes from clients that do not know yet, and costs its sender more.
"""

SENT_FOR_WIDENING = 24
"""Bytes sent per window update that the peer may send without being counted.

gRPC's own library sends two of them for each answer, and a small one has 50 bytes.
"""


class UselessFrames:
    """Counts the useless frames of a connection.

    out: The sending side of the connection.

    counted: The count of this second.
    """

    __slots__ = ("_out", "_sent", "_sent_before", "_widened", "counted")

    def __init__(self, out: Outgoing) -> None:
        self._out = out
        self.counted = self._widened = 0
        self._sent = self._sent_before = 0

    def count(self, count: int = 1) -> None:
        """Count a frame that costs as much as `count`. Raises ConnectionFault at the limit."""
        self.counted += count
        if self.counted > MAX_USELESS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many useless frames")

    def count_widening(self) -> None:
        """Count a window update that the sent bytes do not need. Raises ConnectionFault."""
        self._widened += 1
        if self._widened > MAX_USELESS // 2:
            sent = self._out.sent - self._sent_before
            if self._widened - MAX_USELESS // 2 > sent // SENT_FOR_WIDENING:
                self.count()

    def tick(self) -> None:
        """Start the count of the next second."""
        self.counted = self._widened = 0
        self._sent_before, self._sent = self._sent, self._out.sent


class UselessOfAddresses:
    """Counts useless frames by address. Connections without an address are not counted."""

    def __init__(self) -> None:
        self._counts: Counter[str | bytes] = Counter()

    def count(self, address: str | bytes, count: int, own: int) -> None:
        """Count frames of a connection that has sent `own` in this second.

        Raises ConnectionFault if its address is over the limit and the connection over its share.
        """
        if not address:
            return
        self._counts[address] += count
        if self._counts[address] > MAX_OF_ADDRESS and own > OWN_SHARE:
            reason = "too many useless frames from this address"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, reason)

    def tick(self) -> None:
        """Start the count of the next second."""
        self._counts.clear()
