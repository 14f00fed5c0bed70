"""The interface between a stream and its handler."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cohort.errors import CohortError

SHUTTING_DOWN = "the server is shutting down"


class SentMessage(NamedTuple):
    """A received message.

    data: Its bytes; an unshared bytearray if it arrived in several parts.
    """

    data: bytes | bytearray
    compressed: bool


class ServedStream(Protocol):
    """The handler of a stream."""

    most_bytes: int
    """Maximum size of a message in bytes."""

    @property
    def waits_for_caller(self) -> bool:
        """Return True if the handler only waits for the client."""

    def arrived(self) -> None:
        """Process a whole message, or the end of the client's messages."""

    def refuse(self, error: CohortError) -> None:
        """End the stream with an error, because the received data cannot be accepted."""

    def too_large(self, size: int) -> None:
        """End the stream, because a message of `size` bytes exceeds `most_bytes`."""

    def drained(self) -> None:
        """Continue, because all data was sent."""

    def gone(self) -> None:
        """Clean up: the client disconnected, or the stream ended before its call."""

    def tick(self, now: float) -> None:
        """Check timeouts at `now`, on the monotonic clock."""

    def end_reading(self) -> None:
        """Refuse the call if its message is incomplete, because the server is stopping."""

    def close(self, reason: str = SHUTTING_DOWN) -> None:
        """Accept no further messages; `reason` is the error of a call that cannot end otherwise."""
