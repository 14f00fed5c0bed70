"""The jobs that do the work, as the command sees them: each in a process of its own."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

from cohort.system.jobs import JobTimedOut
from cohort_prepare.failures import Rejected
from cohort_prepare.processes import do_work


class Worker:
    """Has tasks done (`optimizing.tasks`).

    folder: For what they write besides.
    seconds: How long all of them may take together, from now on.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._ends = self._share_ends = monotonic() + seconds

    def share_time(self, parts: int) -> None:
        """Let the tasks that follow take one of so many equal parts of the time that is left."""
        now = monotonic()
        self._share_ends = now + max(0.0, self._ends - now) / parts

    def ask(self, task: str, **details: object) -> dict[str, Any]:
        """The answer to a task.

        Raises Misused, Rejected where the task failed, crashed or took too long, and OSError for a
        full disk.
        """
        function = f"cohort_prepare.optimizing.tasks:{task}"
        seconds = self._share_ends - monotonic()
        try:
            return dict(do_work(function, details, folder=self._folder, seconds=seconds))
        except JobTimedOut as error:
            raise Rejected(
                f"took longer than its share of the {self._seconds:g} s for everything, and was "
                "ended (--seconds)"
            ) from error
