"""An engine that accepts inputs from callers, in front of one that accepts tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

from cohort.batching import RunResult
from cohort.processing.around import Around, Watch
from cohort.processing.prepared_queue import PreparedQueue
from cohort.processing.workroom import Workroom
from cohort.registry import BatchEngine, EngineDescription, NotedEngine, RequestQueue, RunNow
from cohort.session import AssignedNode
from cohort.tensors import Arrays, TensorSpec

WITHOUT_LIMIT = Watch(float("inf"), None)


class ProcessedEngine:
    """An engine that prepares inputs and finishes outputs of another. Implements `BatchEngine`.

    engine: Runs the model; closed with this one. Both share its leases.
    around: The processing of inputs and outputs; closed with this engine.
    workroom: Threads and memory for the processing.
    """

    def __init__(self, engine: BatchEngine, around: Around, workroom: Workroom) -> None:
        self._engine = engine
        self._around = around
        self._workroom = workroom
        self._queue = PreparedQueue(around, engine, workroom, lambda: engine.room_for(0))
        self.leases = engine.leases
        self.inputs: Sequence[TensorSpec] = around.inputs
        self.optional_inputs: Sequence[TensorSpec] = around.optional
        self.outputs: Sequence[TensorSpec] = around.outputs
        self.labels = engine.labels
        self.timeout = engine.timeout
        self.example = around.example(engine.example)
        self.example_outputs = around.answer(engine.example, engine.example_outputs)
        self.submit = self._queue.submit
        if isinstance(engine, NotedEngine):  # this engine is one only if the other is
            self.submit_with = partial(self._queue.submit_with, engine)
        if around.count_tokens is not None:  # this engine is a TokenCounter only then
            self.count_tokens = around.count_tokens
        self._alone = around.prepares or around.by_request

    @property
    def by_tensors(self) -> Self:
        """This engine: requests are tensors, and some of them contain files or text."""
        return self

    @property
    def waiting(self) -> int:
        """The number of requests that are prepared or queued."""
        return self._queue.working + self._engine.waiting

    @property
    def inline_rows(self) -> int:
        """See `BatchEngine`; 1 if requests cannot be joined before they are prepared."""
        return 1 if self._alone else self._engine.inline_rows

    @property
    def run_now(self) -> RunNow:
        """A function that runs a request on the event loop before it returns."""
        return self._run_and_finish if self._around.finishes else self._engine.run_now

    def _run_and_finish(
        self, inputs: Arrays, arrived: float, rows: int, requests: int, /
    ) -> RunResult | None:
        result = self._engine.run_now(inputs, arrived, rows, requests)
        if result is None or result[0] is None:
            return result
        return self._around.finish(result[0], WITHOUT_LIMIT), None

    def room_for(self, priority: int) -> int:
        """Return how many more requests of one row and this priority may be queued."""
        return self._engine.room_for(priority) - self._queue.working

    def check_room(self, priority: int) -> None:
        """Raise Overloaded if no request of one row and this priority may be queued."""
        self._engine.check_room(priority)
        self._queue.check_room()

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        """Open another queue on the same model; see `BatchEngine`."""
        queue = self._engine.side_queue(max_requests=max_requests, shadow=shadow)
        return PreparedQueue(self._around, queue, self._workroom, lambda: max_requests)

    def describe(self) -> EngineDescription:
        """Describe the current state of the engine."""
        around = self._around
        description = self._engine.describe()
        by_request = description.by_request or around.by_request
        return replace(description, processing=around.description, by_request=by_request)

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        """Return the nodes of the model, each with the provider that runs it."""
        return self._engine.assigned_nodes()

    def close(self) -> None:
        """Accept no more requests, fail queued ones with NotReady, and free all resources."""
        self._engine.close()
        self._around.close()
