"""What the handshakes of all connections share: a thread, a bound on their memory, and counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Protocol

import structlog

from app.refusals import LineLimit

log = structlog.get_logger("cohort.tls")

MOST_ANSWERED = 1024
"""Handshakes at most that were answered and wait for the caller: each holds some 50 KiB."""


class Handshaking(Protocol):
    """A connection whose handshake is not over."""

    def fail(self, kind: str, reason: str, /) -> None:
        """Give it up."""


class Handshakes:
    """Does the work of handshakes on a thread, and bounds those that wait for their callers.

    A handshake takes about a millisecond, and one with a long chain of certificates many: on the
    event loop they would be everybody's. One that waits for the thread holds its first bytes only;
    for one that was answered, a caller needs one round trip, so that the oldest may go.

    failed: How many have failed, by kind.
    """

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self._answered: dict[Handshaking, None] = {}  # the oldest first
        self._thread = ThreadPoolExecutor(1, "tls-handshake")
        self._lines = LineLimit()

    def run(self, one: Handshaking, step: Callable[[], None]) -> asyncio.Future[None]:
        """Do a step of a handshake, on the thread."""
        self._answered.pop(one, None)
        return asyncio.get_running_loop().run_in_executor(self._thread, step)

    def wait(self, one: Handshaking) -> None:
        """A handshake was answered, and waits for its caller."""
        self._answered[one] = None
        if len(self._answered) > MOST_ANSWERED:
            oldest = next(iter(self._answered))
            oldest.fail("limit", "too many handshakes wait for their callers")

    def end(self, one: Handshaking) -> None:
        """A handshake is over, or its connection."""
        self._answered.pop(one, None)

    def note_failure(self, kind: str, reason: str, peer: object) -> None:
        """Count a handshake that failed, and log it, with the caller's address."""
        self.failed[kind] += 1
        left_out = self._lines.take(kind, monotonic())
        if left_out is None:
            return
        more = {"left_out": str(left_out)} if left_out else {}
        at = ":".join(map(str, peer[:2])) if isinstance(peer, tuple) else str(peer)
        log.info("TLS handshake failed", kind=kind, reason=reason, peer=at, **more)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
