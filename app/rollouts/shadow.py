"""Copies of what callers asked, run on a version that answers nobody, and compared."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from app.batching import Outputs
from app.comparing import SAME_DECISION, OutputDifference, Pair, compare
from app.errors import CohortError, DeadlineExceeded, NotReady, Overloaded
from app.rollouts.events import Compared, Dropped, Observer
from app.rollouts.rollout import Shadow
from app.rollouts.sequential_test import Counts, Evidence
from app.rollouts.side_queue import RuntimeDependencies, SideQueue
from app.tensors import Array, Arrays, TensorSpec, by_name

QUEUE = 64
"""Copies that may wait for a run, and answers that may wait to be compared."""

LATER_SECONDS = 0.02
"""Comparing waits so long for company."""

LARGE = 1_000_000
"""Bytes of outputs from which they are compared on a thread; less is done sooner than handed on."""

MOST_KEPT_BYTES = 65_536
"""An array of a kept example that is larger is left out."""


@dataclass
class OutputSummary:
    """How one output fared over all that was compared."""

    disagreements: int = 0
    largest: float = 0.0
    relative: float = 0.0


class Shadowing:
    """One model's shadow. `evidence` is weighed by the guard's tick."""

    def __init__(
        self, model: str, shadow: Shadow, dependencies: RuntimeDependencies, observe: Observer
    ) -> None:
        self.model, self.shadow = model, shadow
        self.compared = self.disagreed = self.dropped = self.failed = 0
        self.outputs: dict[str, OutputSummary] = {}
        self.evidence = Evidence()
        self.new = Counts()  # since the evidence was weighed
        self._examples: deque[_Example] = deque(maxlen=shadow.keep_examples)
        self._side_queue = SideQueue(dependencies, model, shadow.version, most=QUEUE, shadow=True)
        self._observe = observe
        self._waiting: list[tuple[Arrays, Pair]] = []
        self._comparing = 0

    def configure(self, shadow: Shadow) -> None:
        """Take another sample, or keep other examples, of the same version."""
        if (shadow.keep_examples, shadow.redact) != (self.shadow.keep_examples, self.shadow.redact):
            self._examples = deque(maxlen=shadow.keep_examples)
        self.shadow = shadow

    def offer(self, arrays: Arrays, specs: Sequence[TensorSpec], outputs: Outputs) -> None:
        """Run a copy of what was answered with `outputs` when there is time; never raises."""
        answered = by_name(specs, outputs)

        def heard(answer: Arrays | None, error: CohortError | None) -> None:
            if answer is None:
                self._missed(arrays, answered, error)
            elif len(self._waiting) + self._comparing >= 2 * QUEUE:
                self._drop()
            else:
                self._waiting.append((arrays, Pair(answered, answer)))
                if len(self._waiting) == 1:
                    asyncio.get_running_loop().call_later(LATER_SECONDS, self._compare)

        try:
            self._side_queue.submit(arrays, heard)
        except CohortError as error:
            self._missed(arrays, answered, error)

    def examples(self) -> list[dict[str, Any]]:
        """The last requests that were answered differently, the newest first."""
        return [example.describe(self.shadow.redact) for example in reversed(self._examples)]

    def close(self) -> None:
        self._side_queue.close()

    def _missed(self, arrays: Arrays, answered: Arrays, error: CohortError | None) -> None:
        """No answer: given up by us, or the version's own failure where the other did not fail."""
        if isinstance(error, Overloaded | NotReady | DeadlineExceeded):
            self._drop()
            return
        self.failed += 1
        self._count(arrays, answered, None, [], str(error))

    def _drop(self) -> None:
        self.dropped += 1
        self._observe(Dropped(self.model, self.shadow.version))

    def _compare(self) -> None:
        waiting, self._waiting = self._waiting, []
        size = sum(
            output.nbytes for _, pair in waiting for side in pair for output in side.values()
        )
        if size < LARGE:
            self._take(waiting, compare([pair for _, pair in waiting], SAME_DECISION))
            return
        self._comparing += len(waiting)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(None, compare, [pair for _, pair in waiting], SAME_DECISION)

        def done(future: asyncio.Future[list[list[OutputDifference]]]) -> None:
            self._comparing -= len(waiting)
            if not future.cancelled():
                self._take(waiting, future.result())

        work.add_done_callback(done)

    def _take(
        self,
        waiting: Sequence[tuple[Arrays, Pair]],
        differences: Sequence[Sequence[OutputDifference]],
    ) -> None:
        for (arrays, pair), outputs in zip(waiting, differences, strict=True):
            self._count(arrays, pair.expected, pair.got, outputs, "")

    def _count(
        self,
        arrays: Arrays,
        answered: Mapping[str, Array],
        shadow: Mapping[str, Array] | None,
        outputs: Sequence[OutputDifference],
        failure: str,
    ) -> None:
        disagrees = shadow is None or any(one.disagrees for one in outputs)
        self.compared += 1
        self.disagreed += disagrees
        self.new += Counts(1, int(disagrees))
        for one in outputs:
            summary = self.outputs.setdefault(one.output, OutputSummary())
            summary.disagreements += one.disagrees
            summary.largest = max(summary.largest, one.largest or 0.0)
            summary.relative = max(summary.relative, one.relative or 0.0)
        if disagrees and self.shadow.keep_examples:
            self._examples.append(_Example.now(arrays, answered, shadow, outputs, failure))
        self._observe(Compared(self.model, self.shadow.version, disagrees, outputs))


@dataclass(frozen=True, slots=True)
class _Example:
    at: str
    inputs: Arrays
    answered: Arrays
    shadow: Arrays | None
    differences: Sequence[OutputDifference]
    failure: str

    @classmethod
    def now(
        cls,
        arrays: Arrays,
        answered: Mapping[str, Array],
        shadow: Mapping[str, Array] | None,
        differences: Sequence[OutputDifference],
        failure: str,
    ) -> _Example:
        """Keep copies: outputs are parts of a whole batch's."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        given = None if shadow is None else _copied(shadow)
        return cls(at, _copied(arrays), _copied(answered), given, differences, failure)

    def describe(self, redact: Sequence[str]) -> dict[str, Any]:
        def plain(arrays: Mapping[str, Array]) -> dict[str, Any]:
            return {
                name: "redacted" if name in redact else _plain(array)
                for name, array in arrays.items()
            }

        return {
            "at": self.at,
            "inputs": plain(self.inputs),
            "answered": plain(self.answered),
            "shadow": None if self.shadow is None else plain(self.shadow),
            # A runtime's message may hold a value.
            "failure": "redacted" if self.failure and redact else self.failure,
            "disagrees": [one.output for one in self.differences if one.disagrees],
        }


def _copied(arrays: Mapping[str, Array]) -> Arrays:
    return {
        name: array.copy() if array.nbytes <= MOST_KEPT_BYTES else _TOO_LARGE
        for name, array in arrays.items()
    }


_TOO_LARGE: Array = np.array("too large to keep", np.object_)


def _plain(array: Array) -> Any:
    """Lists as JSON has them; what it has no number for, as text."""
    if array.dtype.kind == "O":
        text = [str(one) for one in array.reshape(-1)]
        return np.array(text, np.object_).reshape(array.shape).tolist()
    if array.dtype.kind in "biu":
        return array.tolist()
    numbers = array.astype(np.float64)
    if np.isfinite(numbers).all():
        return numbers.tolist()
    return np.array([str(one) for one in numbers.reshape(-1)]).reshape(array.shape).tolist()
