"""Run optimization jobs, each in a separate process."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

from cohort.system.jobs import JobTimedOut
from cohort_prepare.failures import Rejected
from cohort_prepare.processes import do_work


class Worker:
    """Runs jobs of `optimizing.tasks`.

    folder: Folder for temporary files.
    seconds: Time limit of all jobs together, from now on.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._ends = self._share_ends = monotonic() + seconds

    def share_time(self, parts: int) -> None:
        """Limit the next tasks to one of `parts` equal parts of the remaining time."""
        now = monotonic()
        self._share_ends = now + max(0.0, self._ends - now) / parts

    def ask(self, task: str, **details: object) -> dict[str, Any]:
        """Run a task; return its result.

        Raises Misused, Rejected if the task failed, crashed or took too long, and OSError for a
        full disk.
        """
        function = f"cohort_prepare.optimizing.tasks:{task}"
        seconds = self._share_ends - monotonic()
        try:
            return dict(do_work(function, details, folder=self._folder, seconds=seconds))
        except JobTimedOut as error:
            raise Rejected(
                f"took longer than its share of the total {self._seconds:g} s and was ended; "
                "increase --seconds"
            ) from error
