"""Engines that need no model: a test decides what each request is answered, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from cohort.batching import BatchPolicy, Outputs, PadPlan, Reply, RunResult, Times
from cohort.errors import CohortError, NotReady, Overloaded
from cohort.profiling import Profile, ProfileResult
from cohort.registry import (
    RESTING,
    UNLOADED,
    BatchingDescription,
    Engine,
    EngineDescription,
    LeaseCount,
    ModelEntry,
    Registry,
    Source,
    State,
    VersionEntry,
)
from cohort.repository import ModelConfig
from cohort.row_independence import NOT_READ, RowVerdict
from cohort.session import AssignedNode, Metadata, Placement
from cohort.tensors import Arrays, TensorSpec
from tests.fakes import double

X = TensorSpec("x", "FP32", (None, 2))
Y = TensorSpec("y", "FP32", (None, 2))


class ControlledRequest:
    """A request that was submitted: what it holds, and whether it was cancelled or answered."""

    def __init__(
        self,
        inputs: Arrays,
        reply: Reply,
        deadline: float,
        timeout: float | None,
        requests: int,
        priority: int = 0,
    ) -> None:
        self.inputs = inputs
        self.deadline = deadline
        self.timeout = timeout
        self.requests = requests
        self.priority = priority
        self.cancelled = False
        self.answered = False
        self.running = False  # True while its run continues without it
        self.over: Callable[[], None] = lambda: None
        self.times: Times | None = None
        self._reply = reply

    @property
    def waiting(self) -> bool:
        """True if it still needs an answer."""
        return not (self.cancelled or self.answered)

    def cancel(self) -> None:
        """Give its place up; the reply is not called."""
        self.cancelled = True

    def when_over(self, then: Callable[[], None]) -> bool:
        """As `Cancellable.when_over`; `running` is true while it is in a run."""
        if self.running:
            self.over = then
        return self.running

    def answer(self, outputs: Outputs | None, error: CohortError | None = None) -> None:
        """Call its reply, unless it was cancelled; a second answer fails the test."""
        assert not self.answered
        if not self.cancelled:
            self.answered = True
            self._reply(outputs, error)


class ControlledQueue:
    """Keeps requests until the test answers them. Fulfils `RequestQueue`.

    model: Gives the outputs; default twice the inputs.
    max_requests: Waiting requests at most; default None: any number.
    shadow: True if it was opened for a shadow; default False.
    """

    def __init__(
        self,
        model: Callable[[Arrays], Outputs] = double,
        *,
        max_requests: int | None = None,
        shadow: bool = False,
    ) -> None:
        self.model = model
        self.max_requests = max_requests
        self.shadow = shadow
        self.requests: list[ControlledRequest] = []
        self.refusal: CohortError | None = None  # raised by `submit` where set
        self.closed = False

    @property
    def waiting(self) -> int:
        """Number of requests that need an answer."""
        return sum(one.requests for one in self.requests if one.waiting)

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> ControlledRequest:
        """Keep a request. Raises `refusal` where it is set, NotReady or Overloaded."""
        if self.closed:
            raise NotReady("this version is being unloaded")
        if self.refusal is not None:
            raise self.refusal
        if self.max_requests is not None and self.waiting + requests > self.max_requests:
            raise Overloaded("the queue is full")
        request = ControlledRequest(inputs, reply, deadline, timeout, requests, priority)
        self.requests.append(request)
        return request

    def answer(self, error: CohortError | None = None) -> None:
        """Answer the oldest request that waits, by the model or with `error`."""
        request = next(one for one in self.requests if one.waiting)
        request.answer(None if error else self.model(request.inputs), error)

    def answer_all(self, outputs: Outputs | None = None, error: CohortError | None = None) -> None:
        """Answer every request that waits with `outputs` or `error`, or else by the model."""
        if outputs is None and error is None:
            while self.waiting:
                self.answer()
        for request in [one for one in self.requests if one.waiting]:
            request.answer(outputs, error)

    def close(self) -> None:
        """Refuse those that wait, as an engine does."""
        self.closed = True
        for request in self.requests:
            if request.waiting:
                request.answer(None, NotReady("this version is being unloaded"))


class ControlledEngine(ControlledQueue):
    """An engine whose requests the test answers. Fulfils `BatchEngine`.

    inputs, outputs: Its specs; default one FP32 input "x" and one output "y" of two columns.
    model: Function that returns the outputs; default: twice the inputs.
    labels: The names of its classes; default none.
    timeout: The longest that a request may take, in seconds; default 30.
    example: Inputs that it takes; default None: none are known.
    inline_rows: Maximum rows of `run_now`; default 1: it runs nothing.
    placement: Where it runs; default on the CPU, as wanted.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec] = (X,),
        outputs: Sequence[TensorSpec] = (Y,),
        *,
        model: Callable[[Arrays], Outputs] = double,
        labels: Sequence[str] = (),
        timeout: float = 30.0,
        example: Arrays | None = None,
        inline_rows: int = 1,
        placement: Placement | None = None,
        rows: RowVerdict = NOT_READ,
    ) -> None:
        super().__init__(model)
        self.rows = rows
        self.leases = LeaseCount()
        self.inputs, self.outputs = inputs, outputs
        self.optional_inputs: Sequence[TensorSpec] = ()
        self.labels = labels
        self.timeout = timeout
        self.example = example
        self.example_outputs: Outputs | None = None
        self.inline_rows = inline_rows
        self.inline_runs: list[Arrays] = []
        self.side_queues: list[ControlledQueue] = []
        self.metadata = Metadata(producer="tests", opsets={"": 21})
        self.placement = placement or Placement(("cpu",), "cpu", (), {"cpu": 3})
        self.policy = BatchPolicy()
        self.profile = ProfileResult(Profile({1: 0.0001, 32: 0.001}, 32), PadPlan())

    @property
    def by_tensors(self) -> Self:
        """This."""
        return self

    def run_now(self, inputs: Arrays, arrived: float, rows: int, requests: int) -> RunResult | None:
        """Run the model before returning; None if other requests wait. Raises NotReady."""
        if self.closed:
            raise NotReady("this version is being unloaded")
        if self.waiting:
            return None
        self.inline_runs.append(inputs)
        try:
            return self.model(inputs), None
        except CohortError as error:
            return None, error

    def check_room(self, priority: int) -> None:
        """Raise `refusal`, if it is set."""
        if self.refusal is not None:
            raise self.refusal

    def room_for(self, priority: int) -> int:
        """As much as anybody needs."""
        return 1 << 20

    def side_queue(self, *, max_requests: int, shadow: bool) -> ControlledQueue:
        """Return a separate queue, which is kept in `side_queues`."""
        queue = ControlledQueue(self.model, max_requests=max_requests, shadow=shadow)
        self.side_queues.append(queue)
        return queue

    def describe(self) -> EngineDescription:
        """Describe itself with the values given to it."""
        return EngineDescription(
            self.metadata,
            self.placement,
            "cpu",
            batching=BatchingDescription(self.policy, self.profile, rows=self.rows),
            memory_bytes=1 << 20,
        )

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        """None: there is no model."""
        return ()


def batching_of(engine: Engine) -> BatchingDescription:
    """Return the batching part of the engine's description."""
    batching = engine.describe().batching
    assert batching is not None
    return batching


def make_entry(
    number: int = 1, engine: Engine | None = None, *, state: State | None = None, reason: str = ""
) -> VersionEntry:
    """Return a catalog entry with `state`; default: READY with an engine, UNAVAILABLE without."""
    if state is None:
        state = State.UNAVAILABLE if engine is None else State.READY
    source = Source(Path("model.onnx"), "stamp", ModelConfig())
    return VersionEntry(number, state, source, reason, engine)


def make_catalog(models: Mapping[str, Sequence[VersionEntry]]) -> dict[str, ModelEntry]:
    """Return a catalog of these versions."""
    return {
        name: ModelEntry(name, {entry.number: entry for entry in entries})
        for name, entries in models.items()
    }


def make_registry(models: Mapping[str, Sequence[VersionEntry]]) -> Registry:
    """Return a registry that has loaded these versions and reads no disk."""
    registry = Registry([], observe=lambda event: None)
    registry.catalog = make_catalog(models)
    registry.settled = True
    registry._once_ready |= {name for name, model in registry.catalog.items() if model.ready}
    registry._unloaded |= {
        name: one.reason
        for name, model in registry.catalog.items()
        for one in model.versions.values()
        if one.reason in {UNLOADED, RESTING}
    }
    return registry
