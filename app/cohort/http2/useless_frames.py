"""Frames that ask for work and bring none: how many of them a connection may send in a second."""

from __future__ import annotations

from collections import Counter

from cohort.http2.frames import ConnectionFault, ErrorCode
from cohort.http2.outgoing import Outgoing

MAX_USELESS = 2000
"""Frames a second: pings, calls that are reset, empty data."""

MAX_OF_ADDRESS = 4 * MAX_USELESS
"""The same, of all connections of an address: a proxy's have many callers."""

OWN_SHARE = 100
"""Connections that send no more of them are not ended for what others of their address send."""

SETTINGS_LIKE = 20
"""As so many of them counts a SETTINGS frame, which may change the windows of all streams."""

BLOCK_BYTES_LIKE_ONE, HELD_BYTES_LIKE_ONE = 1024, 4096
"""As so many bytes of a header block, or of what headers take in memory: that takes as long."""

SMALL_DATA = 1024
"""Data of a stream that is over counts below this size: more comes from callers who do not know
yet, and is dear to who sends it.
"""

SENT_FOR_WIDENING = 64
"""Bytes that we send, for which a peer may widen a window once."""


class UselessFrames:
    """Counts them.

    out: What the connection sends.

    counted: How many came in this second.
    """

    __slots__ = ("_out", "_sent", "_sent_before", "_widened", "counted")

    def __init__(self, out: Outgoing) -> None:
        self._out = out
        self.counted = self._widened = 0
        self._sent = self._sent_before = 0

    def count(self, count: int = 1) -> None:
        """One more, or one as dear as so many. Raises ConnectionFault where they are too many."""
        self.counted += count
        if self.counted > MAX_USELESS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def count_widening(self) -> None:
        """A window is widened: beyond what we send, that is useless. Raises ConnectionFault."""
        self._widened += 1
        if self._widened > MAX_USELESS // 2:
            sent = self._out.sent - self._sent_before
            if self._widened - MAX_USELESS // 2 > sent // SENT_FOR_WIDENING:
                self.count()

    def look(self) -> None:
        """A second is over."""
        self.counted = self._widened = 0
        self._sent_before, self._sent = self._sent, self._out.sent


class UselessOfAddresses:
    """Counts them by the address of a connection; those without one are not counted."""

    def __init__(self) -> None:
        self._counts: Counter[str | bytes] = Counter()

    def count(self, address: str | bytes, count: int, own: int) -> None:
        """So many more, of a connection that has sent `own`.

        Raises ConnectionFault where the address has sent too many and the connection a share.
        """
        if not address:
            return
        self._counts[address] += count
        if self._counts[address] > MAX_OF_ADDRESS and own > OWN_SHARE:
            reason = "too many frames that bring nothing from this address"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, reason)

    def look(self) -> None:
        """A second is over."""
        self._counts.clear()
