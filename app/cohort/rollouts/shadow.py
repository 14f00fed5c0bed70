"""Copies of requests that run on a version that answers no caller, and their comparison."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from time import monotonic
from typing import Any

from cohort.batching import Outputs
from cohort.comparing import SAME_BITS, SAME_DECISION, Criterion, OutputDifference, Pair
from cohort.errors import CohortError, DeadlineExceeded, NotReady, Overloaded
from cohort.observability.tracing import current_span
from cohort.rollouts.events import Compared, Dropped, RolloutObserver
from cohort.rollouts.examples import ShadowExample
from cohort.rollouts.judgement import Guard, Verdict, judge
from cohort.rollouts.rollout import Shadow
from cohort.rollouts.side_queue import CatalogSource, SideQueue
from cohort.rollouts.text_lengths import compare_answers
from cohort.rollouts.units import OutcomeStream
from cohort.tensors import Array, Arrays, TensorSpec, by_name

QUEUE_SIZE = 64
"""Copies that may wait for a run; twice as many may wait to be compared."""

COMPARE_DELAY_SECONDS = 0.02
"""Time that outputs wait for others, to be compared together."""

THREAD_FROM_BYTES = 1_000_000
"""Bytes of outputs from which a thread compares them; fewer are compared faster in place."""


GAVE_NO_ANSWER = (Overloaded, NotReady, DeadlineExceeded)
"""Errors of a copy that was never run, which are not evidence."""


@dataclass
class OutputSummary:
    """The differences of one output over all compared requests: their count and the largest."""

    disagreements: int = 0
    largest: float = 0.0
    relative: float = 0.0


class ShadowRunner:
    """Runs the copies of one model's shadow, compares, and keeps the evidence.

    compared: The number of copies with an outcome.
    disagreed: Those of them whose outputs disagreed, or that failed.
    failed: Those of them that failed.
    dropped: The number of copies that found no room in the queue or no idle slot in time.
    disagreement: The evidence: copies on which the shadow disagreed, or that failed.

    model: The model's name.
    shadow: Its version and sample; `configure` changes all but the version.
    catalog: Returns the catalog of loaded versions.
    observe: Called with Compared or Dropped for each copy.
    """

    def __init__(
        self,
        model: str,
        shadow: Shadow,
        catalog: CatalogSource,
        observe: RolloutObserver,
    ) -> None:
        self.model, self.shadow = model, shadow
        self.compared = self.disagreed = self.dropped = self.failed = 0
        self.outputs: dict[str, OutputSummary] = {}
        self.disagreement = OutcomeStream()
        self._examples: deque[ShadowExample] = deque(maxlen=shadow.keep_examples)
        self._side_queue = SideQueue(
            catalog, model, shadow.version, max_requests=QUEUE_SIZE, shadow=True
        )
        self._observe = observe
        self._waiting: list[tuple[Arrays, Pair]] = []
        self._comparing = 0

    @property
    def version(self) -> int:
        """The shadow's version."""
        return self.shadow.version

    def configure(self, shadow: Shadow) -> None:
        """Follow an edit of the sample or of kept examples; the version must be the same."""
        if (shadow.keep_examples, shadow.redact) != (self.shadow.keep_examples, self.shadow.redact):
            self._examples = deque(maxlen=shadow.keep_examples)
        if shadow.exact is not self.shadow.exact:
            self.forget_evidence()  # it was collected with the other criterion
        self.shadow = shadow

    @property
    def _criterion(self) -> Criterion:
        return SAME_BITS if self.shadow.exact else SAME_DECISION

    def offer(self, arrays: Arrays, specs: Sequence[TensorSpec], outputs: Outputs) -> None:
        """Run a copy of a request answered with `outputs`, once a slot is idle; never raises."""
        answered = by_name(specs, outputs)
        ended = self._traced()

        def replied(answer: Arrays | None, error: CohortError | None) -> None:
            if ended is not None:
                ended(error)
            if answer is None:
                self._no_answer(arrays, answered, error)
            elif self._are_many(1):
                self._drop()
            else:
                self._wait(arrays, Pair(answered, answer))

        try:
            self._side_queue.submit(arrays, replied)
        except CohortError as error:
            self._no_answer(arrays, answered, error)

    def offer_rows(
        self,
        arrays: Arrays,
        specs: Sequence[TensorSpec],
        outputs: Outputs,
        counts: Sequence[int],
    ) -> None:
        """Run copies of requests that were answered together, as `offer` does; never raises.

        counts: The number of rows of each request in `arrays` and `outputs`, in order.
        """
        taken = min(len(counts), self._side_queue.room)
        if taken < len(counts):
            self._drop(len(counts) - taken)
        ends = [*accumulate(counts[:taken], initial=0)]
        parts = [slice(*ends) for ends in pairwise(ends)]
        rows = ends[-1]
        ended = self._traced()

        def replied(answer: Arrays | None, error: CohortError | None) -> None:
            if ended is not None:
                ended(error)
            if isinstance(error, GAVE_NO_ANSWER) or self._are_many(taken):
                self._drop(taken)
            elif answer is None or any(one.shape[:1] != (rows,) for one in answer.values()):
                for part in parts:  # one may be at fault, or rows are dependent
                    self.offer(_cut(arrays, part), specs, [output[part] for output in outputs])
            else:
                answered = by_name(specs, outputs)
                for part in parts:
                    pair = Pair(_cut(answered, part), _cut(answer, part))
                    self._wait(_cut(arrays, part), pair)

        if not taken:
            return
        try:
            self._side_queue.submit(_cut(arrays, slice(rows)), replied, copies=taken)
        except CohortError as error:
            replied(None, error)

    def judge(self, guard: Guard) -> Verdict | None:
        """Weigh the comparisons since the last call; return a verdict if the limit is broken."""
        if guard.max_disagreement is None:
            return None
        self.disagreement.weigh_alone(guard.max_disagreement)
        return judge({"disagreement": self.disagreement}, guard)

    def forget_evidence(self) -> None:
        """Restart judging from here on; counters and examples stay."""
        self.disagreement = OutcomeStream()

    def examples(self) -> list[dict[str, Any]]:
        """Return the last requests on which the shadow disagreed, in plain values, newest first."""
        return [example.describe(self.shadow.redact) for example in reversed(self._examples)]

    def close(self) -> None:
        """Drop the waiting copies."""
        self._side_queue.close()

    def _traced(self) -> Callable[[CohortError | None], None] | None:
        """Return a function that ends the span of a copy; None if its request is not traced."""
        span = current_span()
        if span is None:
            return None
        began, version = monotonic(), self.shadow.version
        return lambda error: span.shadow(version, began, "OK" if error is None else error.code)

    def _are_many(self, copies: int) -> bool:
        """Return True if too many would wait to be compared with `copies` more."""
        return len(self._waiting) + self._comparing + copies > 2 * QUEUE_SIZE

    def _wait(self, arrays: Arrays, pair: Pair) -> None:
        """Compare the pair soon, with others."""
        self._waiting.append((arrays, pair))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(COMPARE_DELAY_SECONDS, self._compare)

    def _no_answer(self, arrays: Arrays, answered: Arrays, error: CohortError | None) -> None:
        """Count a copy without outputs as dropped, or as failed if only the shadow failed."""
        if isinstance(error, GAVE_NO_ANSWER):
            self._drop()
            return
        self.failed += 1
        self._count(arrays, answered, None, [], str(error))

    def _drop(self, copies: int = 1) -> None:
        self.dropped += copies
        self._observe(Dropped(self.model, self.shadow.version, copies))

    def _compare(self) -> None:
        waiting, self._waiting = self._waiting, []
        size = sum(
            output.nbytes for _, pair in waiting for side in pair for output in side.values()
        )
        if size < THREAD_FROM_BYTES:
            self._count_all(
                waiting, compare_answers([pair for _, pair in waiting], self._criterion)
            )
            return
        self._comparing += len(waiting)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(
            None, compare_answers, [pair for _, pair in waiting], self._criterion
        )

        def done(future: asyncio.Future[list[list[OutputDifference]]]) -> None:
            self._comparing -= len(waiting)
            if not future.cancelled():
                self._count_all(waiting, future.result())

        work.add_done_callback(done)

    def _count_all(
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
        self.disagreement.count(baseline=False, bad=disagrees, now=monotonic())
        for one in outputs:
            summary = self.outputs.setdefault(one.output, OutputSummary())
            summary.disagreements += one.disagrees
            summary.largest = max(summary.largest, one.largest or 0.0)
            summary.relative = max(summary.relative, one.relative or 0.0)
        if disagrees and self.shadow.keep_examples:
            self._examples.append(ShadowExample.capture(arrays, answered, shadow, outputs, failure))
        self._observe(Compared(self.model, self.shadow.version, disagrees, outputs))


def _cut(arrays: Mapping[str, Array], part: slice) -> Arrays:
    return {name: array[part] for name, array in arrays.items()}
