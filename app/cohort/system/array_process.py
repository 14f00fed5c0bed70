"""A child process that works on arrays, and is restarted after a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any

import structlog

from cohort.errors import InferenceFailed, LoadFailed, NotReady
from cohort.system.array_file import ArrayFile
from cohort.system.jobs import (
    JobFailed,
    JobLimits,
    JobOutOfMemory,
    JobProcess,
    JobRaised,
    JobTimedOut,
)
from cohort.tensors import Arrays

log = structlog.get_logger("cohort")

LOAD_SECONDS = 60.0
"""Time limit for importing the module and running its load function."""

MAX_WAIT = 60.0
"""Maximum seconds between two starts, after crashes."""


class ArrayProcess:
    """A process that runs jobs with arrays, one at a time, on the calling thread.

    what: The name of the process in errors and logs, such as "transform" in "the transform of this
        model".
    model: The name of the model in logs.
    load: The first job, `module:function`. It gets `arguments`, the paths of two array files
        (`incoming` for a job, `outgoing` for its answer), and `most_bytes`.
    environment: The environment variables of the process.
    memory: The bytes it may use in addition to those of a new Python process; 0: no limit.
    most_bytes: The maximum bytes of a job's answer.
    longest_wait: Maximum seconds between two starts, after crashes.

    facts: The answer of `load`.

    Raises LoadFailed if the process cannot be started.
    """

    def __init__(
        self,
        *,
        what: str,
        model: str,
        load: str,
        arguments: Mapping[str, object],
        environment: Mapping[str, str],
        memory: int,
        most_bytes: int,
        longest_wait: float = MAX_WAIT,
    ) -> None:
        self._what, self._model = what, model
        self._load, self._arguments, self._environment = load, arguments, environment
        self._memory, self._most_bytes = memory, most_bytes
        self._longest_wait = longest_wait
        self._lock = Lock()
        self._process: JobProcess | None = None
        self._closed = False
        self._crashes = 0
        self._again = 0.0
        self._files: Sequence[ArrayFile] = ()
        try:
            self.facts: Any = self._start()
        except BaseException:
            self.close()
            raise

    def call(
        self, function: str, arrays: Arrays, *, wait: float, seconds: float,
        begin: Callable[[], object], **arguments: object,
    ) -> Arrays:  # fmt: skip
        """Run a job with arrays by name, and return the arrays of its answer.

        function: `module:function`; it gets the `arguments` and the `places` of the arrays in the
            file `incoming`, and returns the places of its answer in `outgoing`.
        wait: Maximum seconds to wait for other jobs.
        seconds: The time limit of the job.
        begin: Called before the job begins; may raise.

        Raises JobTimedOut after either limit, JobRaised if the function raised, NotReady if the
        process ended, and InferenceFailed for arrays that cannot be passed.
        """
        if not self._lock.acquire(timeout=wait):
            raise JobTimedOut("others were before it all the time")
        try:
            begin()
            process = self._running()
            incoming, outgoing = self._files
            places = incoming.write(arrays)
            limits = JobLimits(seconds=seconds)
            given = process.do(function, {**arguments, "places": places}, limits=limits)
            result = outgoing.read(given, self._most_bytes)
            self._crashes = 0
        except JobOutOfMemory as failure:
            self._crashed("it needed too much memory", failure.printed)
            raise NotReady(f"the {self._what} of this model ran out of memory") from failure
        except JobTimedOut as failure:
            self._crashed("it took longer than a request may", failure.printed)
            raise
        except JobRaised:
            raise
        except JobFailed as failure:
            self._crashed(str(failure), failure.printed)
            raise NotReady(
                f"the {self._what} of this model crashed", retry_after=self._wait()
            ) from failure
        except (OSError, ValueError) as error:
            raise InferenceFailed(f"the {self._what} of this model failed: {error}") from error
        finally:
            with suppress(OSError):
                for file in self._files:
                    file.shrink()
            self._lock.release()
        return result

    def close(self) -> None:
        """End the process. A call in progress fails."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None
            self._close_files()

    def _close_files(self) -> None:
        files, self._files = self._files, ()
        for file in files:
            with suppress(OSError):
                file.close()

    def _running(self) -> JobProcess:
        if self._closed:
            raise NotReady(f"the {self._what} of this model is being unloaded")
        if self._process is None:
            left = self._again - monotonic()
            if left > 0:
                raise NotReady(
                    f"the {self._what} of this model crashed, and starts again in {left:.0f} s",
                    retry_after=left,
                )
            try:
                self._start()
            except LoadFailed as error:
                self._crashed(str(error), "")
                raise NotReady(f"the {self._what} of this model cannot be started") from error
        assert self._process is not None  # noqa: S101 - it was started
        return self._process

    def _start(self) -> Any:
        self._close_files()
        try:
            incoming, outgoing = self._files = ArrayFile(), ArrayFile()
            process = JobProcess(f"{self._what} of {self._model}", environment=self._environment)
        except OSError as error:
            reason = f"no process can be started: {error.strerror}"
            raise LoadFailed(f"{self._what}: {reason}") from error
        given = {
            **self._arguments,
            "incoming": incoming.path,
            "outgoing": outgoing.path,
            "most_bytes": self._most_bytes,
        }
        try:
            limits = JobLimits(seconds=LOAD_SECONDS, memory=self._memory)
            self._process = process  # `close` ends it while it loads
            facts = process.do(self._load, given, limits=limits)
        except JobFailed as failure:
            self._process = None
            process.close()
            reason = failure.sentence if isinstance(failure, JobRaised) else str(failure)
            raise LoadFailed(f"{self._what} cannot be loaded: {reason}") from failure
        incoming.hide()
        outgoing.hide()
        return facts

    def _crashed(self, reason: str, printed: str) -> None:
        if self._closed:
            return
        log.warning(
            "process ended",
            process=self._what,
            model=self._model,
            reason=reason,
            printed=printed[-2000:],
        )
        if self._process is not None:
            self._process.kill()
            self._process.close()
            self._process = None
        self._again = monotonic() + self._wait()
        self._crashes += 1

    def _wait(self) -> float:
        """Return the seconds until the next start is allowed: 0 after a first crash."""
        return min(2.0 ** (self._crashes - 1), self._longest_wait) if self._crashes else 0.0
