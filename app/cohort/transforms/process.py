"""The process of one transform, which is started again after it ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Any

import structlog

from cohort.errors import (
    CohortError,
    InferenceFailed,
    InvalidInput,
    LoadFailed,
    NotReady,
    shortened,
)
from cohort.processing import Watch
from cohort.system.jobs import (
    JobFailed,
    JobLimits,
    JobOutOfMemory,
    JobProcess,
    JobRaised,
    JobTimedOut,
    python_path,
)
from cohort.tensors import Arrays
from cohort.transforms.array_file import ArrayFile

log = structlog.get_logger("cohort")

LOAD_SECONDS = 60.0
"""For importing the module, and what it does then."""

LONGEST_WAIT = 60.0
"""Seconds between two starts at most, after crashes."""

MOST_SAID = 2000
"""Characters of an error that callers get."""

CHILD = "cohort.transforms.child"


@dataclass(frozen=True, slots=True)
class TransformFacts:
    """What a transform says of itself.

    before, after: Whether it has the stage.
    inputs, outputs: What it declares, each as a datatype and a shape by name; None: nothing.
    """

    before: bool
    after: bool
    inputs: Mapping[str, Sequence[Any]] | None
    outputs: Mapping[str, Sequence[Any]] | None


class TransformProcess:
    """Runs a transform's stages, one call at a time, on the thread that asks.

    target: `module:Class`.
    folders: Where its module is looked for first.
    memory: Bytes that it may take, besides what a Python takes that did nothing yet.
    most_bytes: The most that a call gives.
    model: What logs call it.
    seconds: How long a call may take. Callers who wait less do not end it: others wait for it.

    facts: What it says of itself. Raises LoadFailed where it cannot be started.
    """

    def __init__(
        self, target: str, folders: Sequence[str], *, memory: int, most_bytes: int, model: str,
        seconds: float,
    ) -> None:  # fmt: skip
        self._target, self._folders = target, [*folders]
        self._memory, self._most_bytes, self._model = memory, most_bytes, model
        self._seconds = seconds
        self._lock = Lock()
        self._process: JobProcess | None = None
        self._closed = False
        self._crashes = 0
        self._again = 0.0
        self._files: Sequence[ArrayFile] = ()
        try:
            self.facts = self._start()
        except BaseException:
            self.close()
            raise

    def call(
        self, stage: str, arrays: Arrays, watch: Watch, seconds: float | None = None
    ) -> Arrays:
        """Call `before` or `after` with arrays by name, and give what it gives.

        seconds: How long it may take; default None: as long as any.

        Raises InvalidInput for a ValueError of `before`, InferenceFailed for any other error,
        NotReady where the process ended, DeadlineExceeded, and Cancelled.
        """
        if not self._lock.acquire(timeout=min(watch.seconds, LONGEST_WAIT)):
            raise watch.late()
        try:
            watch()
            process = self._running()
            incoming, outgoing = self._files
            places = incoming.write(arrays)
            limits = JobLimits(seconds=self._seconds if seconds is None else seconds)
            given = process.do(f"{CHILD}:run", {"stage": stage, "places": places}, limits=limits)
            result = outgoing.read(given, self._most_bytes)
            self._crashes = 0
        except JobFailed as failure:
            raise self._explained(stage, failure, watch) from failure
        except (OSError, ValueError) as error:
            raise InferenceFailed(f"the transform of this model failed: {error}") from error
        finally:
            with suppress(OSError):
                for file in self._files:
                    file.shrink()
            self._lock.release()
        return result

    def close(self) -> None:
        """End the process. A call that goes on fails."""
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
            raise NotReady("the transform of this model is being unloaded")
        if self._process is None:
            left = self._again - monotonic()
            if left > 0:
                raise NotReady(
                    f"the transform of this model crashed, and starts again in {left:.0f} s",
                    retry_after=left,
                )
            try:
                self._start()
            except LoadFailed as error:
                self._crashed(str(error), "")
                raise NotReady("the transform of this model cannot be started") from error
        assert self._process is not None  # noqa: S101 - it was started
        return self._process

    def _start(self) -> TransformFacts:
        self._close_files()
        try:
            incoming, outgoing = self._files = ArrayFile(), ArrayFile()
            process = JobProcess(f"transform of {self._model}", environment=_environment())
        except OSError as error:
            raise LoadFailed(f"transform: no process can be started: {error.strerror}") from error
        arguments = {
            "target": self._target,
            "folders": self._folders,
            "incoming": incoming.path,
            "outgoing": outgoing.path,
            "most_bytes": self._most_bytes,
        }
        try:
            limits = JobLimits(seconds=LOAD_SECONDS, memory=self._memory)
            self._process = process  # `close` ends it while it loads
            told = process.do(f"{CHILD}:load", arguments, limits=limits)
        except JobFailed as failure:
            self._process = None
            process.close()
            reason = failure.sentence if isinstance(failure, JobRaised) else str(failure)
            raise LoadFailed(f"transform: {self._target} cannot be loaded: {reason}") from failure
        incoming.hide()
        outgoing.hide()
        stages, declared = told["stages"], told["declared"]
        return TransformFacts(
            stages["before"], stages["after"], declared["inputs"], declared["outputs"]
        )

    def _explained(self, stage: str, failure: JobFailed, watch: Watch) -> CohortError:
        """What the caller gets; where the process is of no more use, it is ended."""
        match failure:
            case JobTimedOut():
                self._crashed(f"{stage} took longer than a request may", failure.printed)
                return watch.late()
            case JobOutOfMemory():
                self._crashed(f"{stage} needed too much memory", failure.printed)
                return NotReady("the transform of this model ran out of memory")
            case JobRaised():
                log.warning("transform failed", model=self._model, stage=stage,
                            error=failure.sentence)  # fmt: skip
                if failure.is_a(ValueError):
                    text = _said(failure) or "this input is refused"
                    return InvalidInput(text) if stage == "before" else InferenceFailed(text)
                return InferenceFailed(f"{stage} of this model's transform: {failure.sentence}")
        self._crashed(f"{stage}: {failure}", failure.printed)
        return NotReady("the transform of this model crashed", retry_after=self._wait())

    def _crashed(self, reason: str, printed: str) -> None:
        if self._closed:
            return
        log.warning("transform ended", model=self._model, reason=reason, printed=printed[-2000:])
        if self._process is not None:
            self._process.kill()
            self._process.close()
            self._process = None
        self._again = monotonic() + self._wait()
        self._crashes += 1

    def _wait(self) -> float:
        """Seconds until it may be started: none after a first crash."""
        return min(2.0 ** (self._crashes - 1), LONGEST_WAIT) if self._crashes else 0.0


def _said(failure: JobRaised) -> str:
    """Its text as callers get it: what UTF-8 does not have cannot be sent."""
    return shortened(str(failure).encode(errors="replace").decode(), MOST_SAID)


def _environment() -> Mapping[str, str]:
    """This process's own, without what is the server's alone, such as its tokens."""
    kept = {name: one for name, one in os.environ.items() if not name.startswith("COHORT_")}
    return {**kept, "PYTHONPATH": python_path(), "PYTHONDONTWRITEBYTECODE": "1"}
