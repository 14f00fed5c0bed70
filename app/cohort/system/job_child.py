"""The child's side of jobs; `cohort.system.jobs` describes the protocol.

It runs in environments that may lack all of Cohort's dependencies, so it imports only the standard
library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, TextIO

from cohort.system.confinement import be_first_to_go, confine, limit_process

_answers: TextIO | None = None  # the pipe that the parent reads
_doing: tuple[int, int] = 0, 0  # this process, and the number of its job


def report(message: object) -> None:
    """Send a JSON value to the caller of the job. Without a caller, do nothing."""
    if _answers is not None:
        _send(json.dumps({"progress": message}))


def do_jobs() -> None:
    """Run the jobs from standard input until it ends."""
    global _answers, _doing  # noqa: PLW0603 - a process has one parent
    jobs = os.fdopen(os.dup(0), "rb")
    _answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)  # text printed by the job and its libraries is not an answer
    be_first_to_go()
    for line in jobs:
        job = json.loads(line)
        _doing = os.getpid(), job.pop("number")
        answer = _do(**job)
        end_copy()
        signal.alarm(0)
        with suppress(Exception):  # the job may have closed or replaced it
            sys.stdout.flush()
        _send(answer)


def end_copy() -> None:
    """End this process if a job forked it and it returned from the job, as its parent does."""
    if _doing[0] not in {0, os.getpid()}:
        os._exit(0)


def _do(function: str, arguments: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    module, _, name = function.partition(":")
    try:
        if limits["confined"]:
            confine(limits["nice"])
        limit_process(limits["cpu_seconds"], limits["memory"])
        return json.dumps({"answer": getattr(import_module(module), name)(**arguments)})
    except Exception as error:  # noqa: BLE001 - a job may raise anything
        traceback.print_exc()
        kinds = [f"{one.__module__}.{one.__qualname__}" for one in type(error).__mro__]
        number = (error.errno or 0) if isinstance(error, OSError) else 0
        return json.dumps({"raised": kinds, "message": str(error), "number": number})


def _send(line: str) -> None:
    assert _answers is not None  # noqa: S101 - a job runs
    _answers.write(f"\n{_doing[1]} {line}\n")  # earlier output there may lack a line end
    _answers.flush()
