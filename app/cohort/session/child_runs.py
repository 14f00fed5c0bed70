"""Runs of a model in a separate process, for operators that may crash or hang the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    RunRefused,
)
from cohort.system.array_file import MAX_BYTES
from cohort.system.array_process import ArrayProcess
from cohort.system.jobs import JobRaised, JobTimedOut, bare_environment
from cohort.tensors import Array

CHILD = "cohort.session.child"

MAX_WAIT = 5.0
"""Maximum seconds between two starts of a process: requests crash it, not a fault at its start."""


class ChildRuns:
    """A model in another process, with one run at a time, on the calling thread.

    model: The name of the model in logs.
    seconds: The time limit of a run; the process is killed after it.
    memory: The bytes it may use in addition to those of a new Python process; 0: no limit.
    opening: The arguments of `child.load` that describe how to open the model.

    Raises LoadFailed if the process cannot open it.
    """

    def __init__(
        self, model: str, *, seconds: float, memory: int, opening: Mapping[str, object]
    ) -> None:
        self._seconds = seconds
        self._process = ArrayProcess(
            what="decoder",
            model=model,
            load=f"{CHILD}:load",
            arguments=opening,
            environment=bare_environment(),
            memory=memory,
            most_bytes=MAX_BYTES,  # the sender limits the outputs of a run
            longest_wait=MAX_WAIT,
        )

    def run(self, names: Sequence[str], feeds: Mapping[str, Array], options: Any) -> list[Array]:
        """Run, as a session of ONNX Runtime does; `options` can stop a run only before it starts.

        Raises the errors of `Session.run`, NotReady if the process ended, and DeadlineExceeded.
        """

        def begin() -> None:
            if options.terminate:
                raise InferenceFailed("the run was stopped", blames_input=False)

        begin()
        try:
            given = self._process.call(
                f"{CHILD}:run", dict(feeds), wait=self._seconds, seconds=self._seconds, begin=begin
            )
        except JobTimedOut as failure:
            raise DeadlineExceeded(self._seconds) from failure
        except JobRaised as failure:
            raise _raised(failure) from failure
        return [given[name] for name in names]

    def close(self) -> None:
        """End the process."""
        self._process.close()


def _raised(failure: JobRaised) -> CohortError:
    for kind in (RunRefused, InvalidInput):
        if failure.is_a(kind):
            return kind(str(failure))
    if failure.is_a(InferenceFailed):
        return InferenceFailed(str(failure))
    return InferenceFailed(failure.sentence)
