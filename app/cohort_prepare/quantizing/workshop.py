"""Where jobs are done: each in a process of its own, in a folder that goes away."""

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
class Workshop:
    """Does jobs.

    folder: Where files are made.
    seconds: What a job may take.
    told: Gets what is going on.
    """

    folder: Path
    seconds: float
    told: Callable[[str], None]

    def ask(self, answers: type[T], job: str, doing: str, **arguments: object) -> T:
        """Have a job of `quantizing.work` done.

        answers: What it answers with.
        doing: What it does, as in "calibrating".

        Raises Misused, Rejected where a tool or a model fails, and OSError where the system does.
        """
        self.told(doing)
        try:
            answer = do_work(
                f"cohort_prepare.quantizing.work:{job}",
                arguments,
                folder=self.folder,
                cwd=self.folder,  # where tools leave what they forget
                seconds=self.seconds,
                doing=doing,
                told=lambda text: self.told(f"{doing}: {text}"),
            )
        except JobTimedOut as error:
            raise Rejected(
                f"{doing} took longer than {self.seconds:g} s; --timeout allows more"
            ) from error
        return TypeAdapter(answers).validate_python(answer)
