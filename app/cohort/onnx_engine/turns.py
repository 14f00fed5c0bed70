"""A lock with a time limit for tasks that use a core and much memory, such as first runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from cohort.session import CancellationToken

MAX_TURN_SECONDS = 10.0
"""Maximum wait for a turn, so that a slow or hung model does not block the others."""

CHECK_SECONDS = 0.2
"""Interval at which a waiting thread checks for cancellation."""


class Turns:
    """Lets one thread at a time run a task that frees its memory before it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, token: CancellationToken) -> Iterator[None]:
        """Hold the turn; continue without it after MAX_TURN_SECONDS. Raises WorkCancelled."""
        held, until = False, monotonic() + MAX_TURN_SECONDS
        with token.waiting("waiting for its turn to run"):
            while not held and monotonic() < until:
                held = self._lock.acquire(timeout=CHECK_SECONDS)
                if not held:
                    token.check()
        try:
            yield
        finally:
            if held:
                self._lock.release()


RUNNING = Turns()
"""Turns for the first runs of models and the measurement at load."""
