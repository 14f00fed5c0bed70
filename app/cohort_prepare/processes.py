"""The child processes that prepare models: their environment, and what their failures are here."""

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
    """The environment of a child.

    path: Its PYTHONPATH; default None: it imports what this process does.
    more: Further variables.
    """
    return {
        **os.environ,
        "PYTHONPATH": python_path() if path is None else path,
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",  # sets are in the same order every time, and so are graphs
        **more,
    }


def link_packages(folder: Path) -> str:
    """Make a PYTHONPATH in `folder` that has Cohort's packages alone, not what is beside them."""
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
    told: Callable[[str], None] = lambda _: None,
) -> Any:
    """Do a job in a process of its own, and give its answer.

    arguments: By name: paths, dataclasses, and what JSON has.
    folder: For temporary files, which whoever made it removes.
    seconds: How long it may take.
    cwd: Its working folder; default None: that of this process.
    doing: What is done, for messages, as in "calibrating"; default "": they do not say it.
    told: Gets what the job tells.

    Raises Misused, Rejected where a tool or a model fails, OSError where the system does, and
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
            told=told,
        )
    except JobOutOfMemory as error:
        raise Rejected(f"{failed}there is not enough memory") from error
    except JobRaised as error:
        if error.is_a(CohortError):
            raise own_failure(error) from error
        if error.number:
            raise OSError(error.number, os.strerror(error.number)) from error
        raise Rejected(f"{failed}{error.sentence}") from error
    except JobCrashed as error:
        raise Rejected(f"{failed}{error}\n{error.last_lines}".rstrip()) from error


def own_failure(error: JobRaised) -> Misused | Rejected:
    """What a CohortError that a job raised is here."""
    return Misused(str(error)) if error.is_a(Misused) else Rejected(str(error))
