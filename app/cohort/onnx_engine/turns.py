"""Turns of what takes a core and much memory for a moment: running a model for the first time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from cohort.session import CancellationToken

LONGEST_TURN_SECONDS = 10.0
"""How long one is waited for: a model that takes long, or for ever, keeps out nobody."""

LOOK_SECONDS = 0.2
"""Between two looks whether the one who waits was cancelled."""


class Turns:
    """Lets one thread at a time do something, with what it takes of memory given back after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, token: CancellationToken) -> Iterator[None]:
        """Have the turn inside, or go beside whoever takes too long. Raises WorkCancelled."""
        held, until = False, monotonic() + LONGEST_TURN_SECONDS
        with token.waiting("waiting for its turn to run"):
            while not held and monotonic() < until:
                held = self._lock.acquire(timeout=LOOK_SECONDS)
                if not held:
                    token.check()
        try:
            yield
        finally:
            if held:
                self._lock.release()


RUNNING = Turns()
"""First runs of models, and the measurement at their loads."""
