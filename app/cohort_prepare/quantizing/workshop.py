"""Where jobs are done: each in a process of its own, in a folder that goes away."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from cohort.system.children import PYTHON, python_path
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.processes import TookTooLong, last_lines, run_child
from cohort_prepare.quantizing.work import ANSWERS, JOBS, Answer, QuantizeJob, progress_file


@dataclass(frozen=True, slots=True)
class Workshop:
    """Does jobs.

    folder: Where files are made.
    seconds: What a job may take.
    told: Gets what is going on.
    """

    folder: Path
    seconds: float
    told: Callable[[str], None]

    def ask(self, job: QuantizeJob, doing: str) -> Answer:
        """Have a job done; `doing` says what, as in "calibrating".

        Raises Misused, Rejected where a tool or a model fails, and OSError where the system does.
        """
        self.told(doing)
        # Not in `folder`: on a full disk, nothing could be said of it.
        with tempfile.TemporaryDirectory(prefix="cohort-") as name:
            folder = Path(name)
            given, answered = folder / "job.json", folder / "answer.json"
            given.write_bytes(JOBS.dump_json(job))
            command = [
                *PYTHON,
                "-m",
                "cohort_prepare.quantizing.process",
                str(given),
                str(answered),
            ]

            def look() -> None:
                progress = progress_file(answered)
                if progress.exists() and (text := progress.read_text(encoding="utf-8")):
                    self.told(f"{doing}: {text}")

            try:
                status, printed = run_child(
                    command,
                    folder,
                    path=python_path(),
                    cwd=folder,  # where tools leave what they forget
                    seconds=self.seconds,
                    look=look,
                )
            except TookTooLong:
                raise Rejected(
                    f"{doing} took longer than {self.seconds:g} s; --timeout allows more"
                ) from None
            try:
                answer = ANSWERS.validate_json(answered.read_bytes())
            except (FileNotFoundError, ValidationError):
                raise Rejected(_no_answer(doing, status, printed)) from None
        if answer.failure is not None:
            _raise(answer, doing)
        return answer


def _raise(answer: Answer, doing: str) -> None:
    failure = answer.failure
    assert failure is not None  # noqa: S101 - the caller looked
    if failure.kind == "misused":
        raise Misused(failure.error)
    if failure.kind == "system" and failure.number:
        raise OSError(failure.number, failure.error)
    if failure.kind == "rejected":
        raise Rejected(failure.error)
    raise Rejected(f"{doing} failed: {failure.error}")


def _no_answer(doing: str, status: int, printed: str) -> str:
    if status < 0:
        name = signal.Signals(-status).name
        why = f"the process was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
    else:
        why = f"the process ended with status {status}"
    return f"{doing} failed: {why}\n{last_lines(printed)}".rstrip()
