"""The process of one transform, which is started again after it ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from cohort.errors import InferenceFailed, InvalidInput, shortened
from cohort.processing import Watch
from cohort.system.array_process import LONGEST_WAIT, ArrayProcess
from cohort.system.jobs import JobRaised, JobTimedOut, python_path
from cohort.tensors import Arrays

log = structlog.get_logger("cohort")

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
        """Call `before` or `after` with arrays by name, and give what it gives.

        seconds: How long it may take; default None: as long as any.

        Raises InvalidInput for a ValueError of `before`, InferenceFailed for any other error,
        NotReady where the process ended, DeadlineExceeded, and Cancelled.
        """
        try:
            return self._process.call(
                f"{CHILD}:run",
                arrays,
                wait=min(watch.seconds, LONGEST_WAIT),
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
                text = _said(failure) or "this input is refused"
                raise (InvalidInput if stage == "before" else InferenceFailed)(text) from failure
            raise InferenceFailed(
                f"{stage} of this model's transform: {failure.sentence}"
            ) from failure

    def close(self) -> None:
        """End the process. A call that goes on fails."""
        self._process.close()


def _said(failure: JobRaised) -> str:
    """Its text as callers get it: what UTF-8 does not have cannot be sent."""
    return shortened(str(failure).encode(errors="replace").decode(), MOST_SAID)


def _environment() -> Mapping[str, str]:
    """This process's own, without what is the server's alone, such as its tokens."""
    kept = {name: one for name, one in os.environ.items() if not name.startswith("COHORT_")}
    return {**kept, "PYTHONPATH": python_path(), "PYTHONDONTWRITEBYTECODE": "1"}
