"""Execution of one step, as one request of its model or as one request per row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic

from cohort.batching import Outputs
from cohort.errors import CohortError, InferenceFailed, InvalidInput
from cohort.pipelines.deciding import Decision, row_of, stacked
from cohort.pipelines.graph import GraphStep
from cohort.pipelines.items import none_of
from cohort.pipelines.steps import Hired, StepEnded
from cohort.registry import Cancellable
from cohort.tensors import Arrays, check_inputs, sent_specs

MAX_ROWS_ALONE = 256
"""Maximum number of rows that a step runs one by one, if its model may mix rows."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Deadline, limit and priority of the requests of steps; see `RequestQueue.submit`."""

    deadline: float
    timeout: float | None
    requests: int
    priority: int


class StepRun:
    """A running step of one request.

    began: The time it was created, in seconds on the monotonic clock.

    step: The step.
    hired: The queue and lease of its model.
    decision: The rows or items that it runs for, and their tensors.
    total: Number of rows of the request; -1 if steps take the request as a whole.
    ended: Called with this run and the error of the step, or None.
    """

    __slots__ = (
        "_answers", "_ended", "_inputs", "_is_over", "_left", "_tickets",
        "began", "count", "hired", "items", "rows", "step",
    )  # fmt: skip

    def __init__(
        self,
        step: GraphStep,
        hired: Hired,
        decision: Decision,
        total: int,
        ended: Callable[[StepRun, CohortError | None], None],
    ) -> None:
        self.rows, self._inputs, self.items = decision
        self.step, self.hired = step, hired
        self.count = total if self.rows is None else len(self.rows)
        if self.items is not None:
            self.count = self.items.rows
        self.began = monotonic()
        self._ended = ended
        self._tickets: list[Cancellable] = []
        self._answers: list[Outputs] = []
        self._left = 0
        self._is_over = False

    def submit(self, terms: Terms) -> None:
        """Submit its requests. Raises a CohortError that does not name the step."""
        facts, inputs, count = self.hired.facts, self._inputs, self.count
        self._inputs = {}
        specs = facts.inputs
        if len(inputs) > len(specs):
            specs = sent_specs(specs, facts.optional, inputs)
        by_rows = facts.by_rows
        if self.items is not None:
            by_rows = by_rows and all(spec.rows_vary for spec in specs)
            check_inputs(specs, inputs if by_rows else row_of(inputs, 0))
        else:
            check_inputs(specs, inputs)
        if count <= 1 or by_rows:
            self._submit(inputs, 0, terms)
            return
        if count > MAX_ROWS_ALONE:
            raise InvalidInput(
                f"model {self.step.model!r} may mix rows, so that they run one by one: at most "
                f"{MAX_ROWS_ALONE} in a request, got {count}"
            )
        for row in range(count):
            self._submit(row_of(inputs, row), row, terms)

    def _submit(self, inputs: Arrays, place: int, terms: Terms) -> None:
        self._answers.append([])
        ticket = self.hired.queue.submit(
            inputs,
            partial(self._replied, place),
            deadline=terms.deadline,
            timeout=terms.timeout,
            requests=terms.requests,
            priority=terms.priority,
        )
        self._left += 1
        self._tickets.append(ticket)

    def _replied(self, place: int, outputs: Outputs | None, error: CohortError | None) -> None:
        if self._is_over:
            return
        self._left -= 1
        if outputs is None:
            self._ended(self, error or InferenceFailed("no answer"))
            return
        self._answers[place] = outputs
        if not self._left:
            self._ended(self, None)

    @property
    def waited(self) -> float:
        """Return the average number of seconds that its requests waited in queues."""
        return sum([one.times[0] for one in self._tickets if one.times]) / len(self._tickets)

    def take_outputs(self) -> Outputs:
        """Return the outputs, once. Raises InferenceFailed if rows cannot be stacked."""
        answers, self._answers = self._answers, []
        if not answers:
            return [none_of(spec) for spec in self.hired.facts.outputs]
        return stacked(answers) if len(answers) > 1 else answers[0]

    def end(self, code: str, over: Callable[[], None]) -> tuple[StepEnded, int]:
        """End the step, and release its model once its runs have ended.

        code: OK, the error's name, Cancelled, or Skipped.
        over: Called when the run of a cancelled request ends.

        Returns the report of the step, and the number of runs that have not ended.
        """
        self._is_over, self._left = True, 0
        if code not in ("OK", "Skipped"):
            for ticket in self._tickets:
                ticket.cancel()
                self._left += ticket.when_over(partial(self._over, over))
        going_on = self._left
        if not going_on:
            self.hired.leases.release()
        seconds = 0.0 if code == "Skipped" else monotonic() - self.began
        step, rows = self.step, max(self.count, 0)
        times = self._tickets[0].times if self._tickets else None
        version = self.hired.version
        return StepEnded(step.name, step.model, version, code, seconds, rows, times), going_on

    def _over(self, then: Callable[[], None]) -> None:
        self._left -= 1
        if not self._left:
            self.hired.leases.release()
        then()
