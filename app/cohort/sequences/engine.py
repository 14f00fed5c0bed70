"""An engine that keeps the state of sequences, around an engine that accepts it as an input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self

from cohort.batching import Outputs, Reply, RunResult
from cohort.errors import NotReady
from cohort.registry import (
    BatchEngine,
    EngineDescription,
    RequestNotes,
    RequestQueue,
    RunNow,
)
from cohort.repository import SequencePolicy
from cohort.sequences.asked import read_sequence
from cohort.sequences.counts import SequenceCounts
from cohort.sequences.sequence import SequenceRequest
from cohort.sequences.state import StatePlan
from cohort.sequences.table import OtherVersions, SequenceTable
from cohort.session import AssignedNode
from cohort.tensors import Arrays, TensorSpec


class SequencedEngine:
    """An engine that adds the state of the sequence to each request.

    Implements `BatchEngine` and `NotedEngine`.

    engine: Runs the model; closed with this engine, which shares its leases.
    plan: The state tensors of the model.
    policy: Limits on the number, size and idle time of sequences.
    model, version: The model and version that it serves.
    others: The sequences of other versions.
    counts: The counts to update.
    """

    def __init__(
        self,
        engine: BatchEngine,
        plan: StatePlan,
        policy: SequencePolicy,
        model: str,
        version: int,
        others: OtherVersions,
        counts: SequenceCounts,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._table = SequenceTable(model, version, engine, plan, policy, others, counts)
        self.leases = engine.leases
        self.inputs: Sequence[TensorSpec] = plan.inputs
        state = {tensor.spec.name for tensor in plan.tensors}
        self.optional_inputs: Sequence[TensorSpec] = [
            spec for spec in engine.optional_inputs if spec.name not in state
        ]
        self.outputs: Sequence[TensorSpec] = plan.outputs
        self.labels = engine.labels
        self.timeout = engine.timeout
        self.example_outputs: Outputs | None = None
        example = engine.example
        self.example = example and {
            name: array for name, array in example.items() if name not in state
        }

    @property
    def by_tensors(self) -> Self:
        """Return this engine, because its requests are tensors."""
        return self

    @property
    def waiting(self) -> int:
        """Return the number of queued requests."""
        return self._engine.waiting

    @property
    def inline_rows(self) -> int:
        """Return 1, because each request runs with the state of its sequence."""
        return 1

    @property
    def run_now(self) -> RunNow:
        """Return a function that runs nothing; see `inline_rows`."""
        return _not_now

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> SequenceRequest:
        """Reject a request, because it names no sequence."""
        return self.submit_with(
            RequestNotes(), inputs, reply, deadline=deadline, timeout=timeout, priority=priority
        )

    def submit_with(
        self,
        notes: RequestNotes,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        priority: int = 0,
    ) -> SequenceRequest:
        """See `NotedEngine`."""
        asked = read_sequence(notes.parameters, notes.sequence)
        wanted: dict[str, Any] = {"deadline": deadline, "timeout": timeout, "priority": priority}
        sequence = self._table.find(notes.caller, asked)
        request = SequenceRequest(sequence, asked, inputs, reply, wanted)
        sequence.add(request)
        return request

    def room_for(self, priority: int) -> int:
        """Return how many more one-row requests of this priority can be queued."""
        return self._engine.room_for(priority)

    def check_room(self, priority: int) -> None:
        """Raise Overloaded if no one-row request of this priority can be queued."""
        self._engine.check_room(priority)

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        """Return a queue that rejects all; a copy has no sequence, so its answer would differ."""
        return NoSequence()

    def describe(self) -> EngineDescription:
        """Describe the current engine and its state tensors."""
        description = self._engine.describe()
        names = ", ".join(tensor.spec.name for tensor in self._plan.tensors)
        sentence = f"remembered between the requests of a sequence (sequence_id): {names}"
        processing = {**description.processing, "state": sentence}
        return replace(description, processing=processing, by_sequence=True)

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        """Return the nodes of the model, each with the provider that runs it."""
        return self._engine.assigned_nodes()

    def close(self) -> None:
        """Reject new requests, fail queued ones with NotReady, and free all states."""
        self._table.close()
        self._engine.close()


def _not_now(inputs: Arrays, arrived: float, rows: int, requests: int, /) -> RunResult | None:
    del inputs, arrived, rows, requests
    return None


class NoSequence:
    """A queue that rejects all requests. Implements `RequestQueue`."""

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> NoReturn:
        """Raise NotReady, because a copy's answer is not evidence for or against a version."""
        raise NotReady("a copied request has no sequence, but this model has state")

    def close(self) -> None:
        """See `RequestQueue`."""
