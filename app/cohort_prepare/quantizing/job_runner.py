"""Run jobs, each in a separate process and a temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from cohort.system.jobs import JobTimedOut
from cohort_prepare.failures import Rejected
from cohort_prepare.processes import do_work

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobRunner:
    """Runs jobs.

    folder: Folder for files.
    seconds: Time limit of a job.
    on_progress: Called with progress messages.
    """

    folder: Path
    seconds: float
    on_progress: Callable[[str], None]

    def ask(self, answers: type[T], job: str, doing: str, **arguments: object) -> T:
        """Run a job of `quantizing.work`; return its result.

        answers: Type of the result.
        doing: Description, such as "calibrating".

        Raises Misused, Rejected if a tool or model fails, and OSError if the system does.
        """
        self.on_progress(doing)
        try:
            answer = do_work(
                f"cohort_prepare.quantizing.work:{job}",
                arguments,
                folder=self.folder,
                cwd=self.folder,  # tools leave temporary files here
                seconds=self.seconds,
                doing=doing,
                on_progress=lambda text: self.on_progress(f"{doing}: {text}"),
            )
        except JobTimedOut as error:
            raise Rejected(
                f"{doing} took longer than {self.seconds:g} s; increase --timeout"
            ) from error
        return TypeAdapter(answers).validate_python(answer)
