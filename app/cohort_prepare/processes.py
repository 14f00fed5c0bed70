"""Child processes that prepare models: their environment, and their errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from cohort.errors import CohortError
from cohort.system.jobs import (
    JobCrashed,
    JobLimits,
    JobOutOfMemory,
    JobRaised,
    python_path,
    run_job,
)
from cohort_prepare.failures import Misused, Rejected


def preparing_environment(path: str | None = None, **more: str) -> dict[str, str]:
    """Return the environment of a child process.

    path: PYTHONPATH; default None: import the same modules as this process.
    more: Further variables.
    """
    return {
        **os.environ,
        "PYTHONPATH": python_path() if path is None else path,
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",  # gives sets, and so graphs, a fixed order
        **more,
    }


def link_packages(folder: Path) -> str:
    """Make a PYTHONPATH in `folder` with Cohort's packages only; return it."""
    path = folder / "path"
    path.mkdir()
    for package in ("cohort", "cohort_prepare"):
        (path / package).symlink_to(Path(__file__).parents[1] / package)
    return str(path)


def do_work(
    function: str,
    arguments: Mapping[str, object],
    *,
    folder: Path,
    seconds: float,
    cwd: Path | None = None,
    doing: str = "",
    on_progress: Callable[[str], None] = lambda _: None,
) -> Any:
    """Run a job in a separate process, and return its result.

    arguments: By name: paths, dataclasses and JSON values.
    folder: For temporary files; the caller deletes it.
    seconds: Time limit.
    cwd: Working folder; default None: this process's.
    doing: Description for error messages, such as "calibrating"; default "": no description.
    on_progress: Called with the job's progress messages.

    Raises Misused, Rejected if a tool or a model fails, OSError if the system does, and
    JobTimedOut.
    """
    failed = f"{doing} failed: " if doing else ""
    try:
        return run_job(
            function,
            to_jsonable_python(arguments),
            environment=preparing_environment(TMPDIR=str(folder.absolute())),
            cwd=cwd,
            limits=JobLimits(seconds),
            on_message=on_progress,
        )
    except JobOutOfMemory as error:
        raise Rejected(f"{failed}out of memory") from error
    except JobRaised as error:
        if error.is_a(CohortError):
            raise own_failure(error) from error
        if error.number:
            raise OSError(error.number, os.strerror(error.number)) from error
        raise Rejected(f"{failed}{error.sentence}") from error
    except JobCrashed as error:
        raise Rejected(f"{failed}{error}\n{error.last_lines}".rstrip()) from error


def own_failure(error: JobRaised) -> Misused | Rejected:
    """Convert a CohortError that a job raised to Misused or Rejected."""
    return Misused(str(error)) if error.is_a(Misused) else Rejected(str(error))
