"""The process of one transform; it is restarted after it ends."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from cohort.errors import InferenceFailed, InvalidInput, shortened
from cohort.processing import Watch
from cohort.system.array_process import MAX_WAIT, ArrayProcess
from cohort.system.jobs import JobRaised, JobTimedOut, python_path
from cohort.tensors import Arrays

log = structlog.get_logger("cohort")

MAX_ERROR_CHARACTERS = 2000
"""Maximum number of characters of an error that clients receive."""

CHILD = "cohort.transforms.child"


@dataclass(frozen=True, slots=True)
class TransformFacts:
    """The stages and declarations of a transform.

    before, after: True if it has the stage.
    inputs, outputs: The declared datatype and shape by name; None: not declared.
    """

    before: bool
    after: bool
    inputs: Mapping[str, Sequence[Any]] | None
    outputs: Mapping[str, Sequence[Any]] | None


class TransformProcess:
    """A process that runs a transform's stages, one call at a time; calls block their thread.

    target: `module:Class`.
    folders: Folders that are searched first for the module.
    memory: Maximum bytes of memory, not counting those of an idle Python process.
    most_bytes: Maximum size of a call's result.
    model: The model's name in logs.
    seconds: Time limit of a call. A shorter client deadline does not end the process, because other
        clients wait for it.

    facts: The stages and declarations. Raises LoadFailed if the process cannot start.
    """

    def __init__(
        self, target: str, folders: Sequence[str], *, memory: int, most_bytes: int, model: str,
        seconds: float,
    ) -> None:  # fmt: skip
        self._model, self._seconds = model, seconds
        self._process = ArrayProcess(
            what="transform",
            model=model,
            load=f"{CHILD}:load",
            arguments={"target": target, "folders": folders},
            environment=_environment(),
            memory=memory,
            most_bytes=most_bytes,
        )
        stages, declared = self._process.facts["stages"], self._process.facts["declared"]
        self.facts = TransformFacts(
            stages["before"], stages["after"], declared["inputs"], declared["outputs"]
        )

    def call(
        self, stage: str, arrays: Arrays, watch: Watch, seconds: float | None = None
    ) -> Arrays:
        """Call `before` or `after` with arrays by name, and return its result.

        seconds: Time limit of this call; default None: the limit of every call.

        Raises InvalidInput for a ValueError of `before`, and InferenceFailed for any other error.
        Also raises NotReady if the process ended, DeadlineExceeded, and Cancelled.
        """
        try:
            return self._process.call(
                f"{CHILD}:run",
                arrays,
                wait=min(watch.seconds, MAX_WAIT),
                seconds=self._seconds if seconds is None else seconds,
                begin=watch,
                stage=stage,
            )
        except JobTimedOut as failure:
            raise watch.late() from failure
        except JobRaised as failure:
            log.warning("transform failed", model=self._model, stage=stage,
                        error=failure.sentence)  # fmt: skip
            if failure.is_a(ValueError):
                text = _client_text(failure) or "this input is refused"
                raise (InvalidInput if stage == "before" else InferenceFailed)(text) from failure
            raise InferenceFailed(
                f"{stage} of this model's transform: {failure.sentence}"
            ) from failure

    def close(self) -> None:
        """End the process. A call in progress fails."""
        self._process.close()


def _client_text(failure: JobRaised) -> str:
    """Return the error text for clients, without characters that UTF-8 cannot encode."""
    return shortened(str(failure).encode(errors="replace").decode(), MAX_ERROR_CHARACTERS)


def _environment() -> Mapping[str, str]:
    """Return this process's environment without the server's settings, such as its tokens."""
    kept = {name: one for name, one in os.environ.items() if not name.startswith("COHORT_")}
    return {**kept, "PYTHONPATH": python_path(), "PYTHONDONTWRITEBYTECODE": "1"}
