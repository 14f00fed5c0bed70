"""What serves a stream, as the stream sees it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cohort.errors import CohortError


class SentMessage(NamedTuple):
    """A message as it was sent.

    data: Its bytes; a bytearray, which nobody else has, where it came in several parts.
    """

    data: bytes | bytearray
    compressed: bool


class ServedStream(Protocol):
    """What serves a stream."""

    most_bytes: int
    """The size of a message at most."""

    @property
    def waits_for_caller(self) -> bool:
        """Whether nothing is being done but waiting for what its caller sends."""

    def arrived(self) -> None:
        """A message is whole, or the caller sends no more."""

    def refuse(self, error: CohortError) -> None:
        """What arrives cannot be taken: end the stream by this error."""

    def too_large(self, size: int) -> None:
        """A message of so many bytes begins, and is larger than `most_bytes`: end the stream."""

    def drained(self) -> None:
        """All that was sent is on its way."""

    def gone(self) -> None:
        """The caller has left, or the stream was ended before its call."""

    def look(self, now: float) -> None:
        """See whether what it waits for is late at `now`, on the monotonic clock."""

    def end_reading(self) -> None:
        """Refuse the call where its message is not whole: the server stops."""

    def close(self) -> None:
        """Read nothing more than what has begun."""
