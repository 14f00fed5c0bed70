"""The child processes that do the work, as the command sees them: one for each task."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from time import monotonic
from typing import Any

from cohort.system.children import PYTHON, python_path
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.processes import TookTooLong, last_lines, run_child

DISK_FULL = 74
"""The exit status of a child that has not even room for its answer; EX_IOERR of sysexits.h."""


class Worker:
    """Has tasks done, each in a process of its own (`child`).

    folder: For what they write besides.
    seconds: How long all of them may take together, from now on.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds, self._asked = folder, seconds, 0
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
        self._asked += 1
        folder = self._folder / f"{self._asked}-{task}"
        folder.mkdir()
        job = folder / "job.json"
        job.write_text(json.dumps({"task": task, **details}), encoding="utf-8")
        command = [*PYTHON, "-m", "cohort_prepare.optimizing.child", str(job)]
        left = self._share_ends - monotonic()
        try:
            if left <= 0:
                raise TookTooLong
            status, printed = run_child(command, folder, path=python_path(), seconds=left)
        except TookTooLong as error:
            raise Rejected(
                f"took longer than its share of the {self._seconds:g} s for everything, and was "
                "ended (--seconds)"
            ) from error
        if status == DISK_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            raise Rejected(_how_it_ended(status, printed)) from None
        if "misused" in answer:
            raise Misused(answer["misused"])
        if "rejected" in answer:
            raise Rejected(answer["rejected"])
        if "errno" in answer:
            raise OSError(answer["errno"], answer["reason"])
        return dict(answer)


def _how_it_ended(status: int, printed: str) -> str:
    if status >= 0:
        return f"the process ended with status {status}\n{last_lines(printed)}".rstrip()
    name = signal.Signals(-status).name
    return f"the process crashed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
