"""The runs of a load, which have an end."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import structlog

from app.batching import Outputs
from app.profiling import RunFeeds
from app.session import OrtRunControl, Session
from app.tensors import Arrays

log = structlog.get_logger("cohort.registry")


class FirstRunsTooLong(Exception):
    """The time for the first runs of a model is over.

    No CohortError: whatever tries inputs goes on after those, and would take this for a refusal.
    """


class FirstRuns:
    """Limits the time of all runs of one load, from `with` on; half of it is told in the log.

    Loads have their turns on one thread, so a run without end would hold up all others. It ends
    before its next node, or the next one of a loop's body; within a node nothing ends it.

    path: The model's file.
    seconds: How long the runs may take, by the clock.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self._control = OrtRunControl()
        self._over, self._left = threading.Event(), threading.Event()

    def __enter__(self) -> FirstRuns:
        threading.Thread(target=self._watch, name="cohort-first-runs", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._left.set()

    def of(self, session: Session) -> RunFeeds:
        """What runs `session`; raises as it does, and FirstRunsTooLong once the time is over."""

        def run(feeds: Arrays) -> Outputs:
            try:
                return session.run(feeds, self._control)
            finally:
                if self._over.is_set():
                    raise FirstRunsTooLong(
                        f"its first runs took longer than {self._seconds:g} s (load_timeout_s)"
                    )

        return run

    def _watch(self) -> None:
        if self._left.wait(self._seconds / 2):
            return
        log.warning(
            "load takes long",
            model=self._path.parent.parent.name,
            version=self._path.parent.name,
            seconds=self._seconds / 2,
            load_timeout_s=self._seconds,
        )
        if not self._left.wait(self._seconds / 2):
            self._over.set()
            self._control.stop()
