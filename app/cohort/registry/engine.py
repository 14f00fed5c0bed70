"""The ports between the registry, what runs models, and those who use them.

An engine answers the requests of one version. A factory makes the engines of all versions whose
folder holds a file of one name, such as `model.onnx` (`cohort.onnx_engine`). The registry knows
factories and engines, planes and rollouts know engines, and all of them only the Protocols below,
with plain specs and arrays (docs/contributing/decisions/0009, 0056).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from cohort.batching import BatchEvent, BatchPolicy, Outputs, Reply, RunResult
from cohort.profiling import ProfileResult
from cohort.registry.source import Source
from cohort.repository import Published
from cohort.row_independence import NOT_READ, RowVerdict
from cohort.session import AssignedNode, CancellationToken, Metadata, Placement, Signature
from cohort.tensors import Arrays, TensorSpec


class LeaseCount:
    """Counts the requests that hold an engine, and calls a function when none does."""

    __slots__ = ("_on_idle", "count")

    def __init__(self) -> None:
        self.count = 0
        self._on_idle: Callable[[], None] | None = None

    def release(self, count: int = 1) -> None:
        """Release `count` leases; default 1."""
        self.count -= count
        if self._on_idle is not None and not self.count:
            self._on_idle()

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` when the count falls to 0; immediately where it is 0."""
        self._on_idle = then
        if not self.count:
            then()


@dataclass(frozen=True, slots=True)
class BatchingDescription:
    """How requests share runs.

    policy: The batch policy in force, which the profile or a row check may have restricted.
    profile: What was measured.
    unpredictable: Why the duration of a run cannot be estimated, so that none executes on the event
        loop; "" where it can.
    rows: Whether rows of a run influence each other; default: not known.
    """

    policy: BatchPolicy
    profile: ProfileResult
    unpredictable: str = ""
    rows: RowVerdict = NOT_READ


@dataclass(frozen=True, slots=True)
class StepDescription:
    """A step of a pipeline.

    name: Its name.
    model, version: The model that it runs, and its version; None: the model's default.
    serving: The version that runs it now; None where it is not known.
    inputs: Where each input of the model comes from: the first of these tensors that there is.
    when: Its condition; "" where it always runs.
    each: The tensors of which each item is a row of the step; empty: it has the request's rows.
    """

    name: str
    model: str
    version: int | None
    serving: int | None
    inputs: Mapping[str, Sequence[str]]
    when: str
    each: Sequence[str]


@dataclass(frozen=True, slots=True)
class PipelineDescription:
    """A graph of models that answers as one.

    steps: Its steps, each after those that it needs.
    outputs: Where each output comes from: the first of these tensors that there is.
    conditions: What conditions are decided for: "rows", or "request" as a whole; "": there is none.
    row_by_row: Steps whose models may mix rows, so that rows run one by one, as alone.
    by_rows: Whether the answer of a row is known not to depend on the other rows of its request.
    depth: How many pipelines there are within each other, this one included.
    """

    steps: Sequence[StepDescription]
    outputs: Mapping[str, Sequence[str]]
    conditions: str
    row_by_row: Sequence[str]
    by_rows: bool
    depth: int

    @property
    def needs(self) -> frozenset[tuple[str, int | None]]:
        """The models that it runs, each with the version; None for its default."""
        return frozenset((step.model, step.version) for step in self.steps)


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """How an engine runs its model, for operators.

    metadata: What the model's file says about it.
    placement: The execution providers wanted and active.
    device: The device that runs use, such as "cpu" or "cuda:0".
    files: The SHA-256 of its files, in hex, by their paths in the version's folder; default none.
    published: What its manifest says, and who signed it; default: it has none.
    batching: How requests share runs; default None: this engine has no runs that they share.
    processing: What it makes of inputs that callers send, in sentences by name; default: nothing.
    by_request: Whether something around the model may make another row of a row beside others.
    by_sequence: Whether requests have to name a sequence.
    pipeline: The models that it is made of; default None: it is a model itself.
    memory_bytes: What the process's memory grew by while the version was loaded, shared with others
        that were loaded at the same time; default 0: not known.
    made_up: Whether its example is of synthetic numbers, of nobody's data; default False.
    """

    metadata: Metadata
    placement: Placement
    device: str
    files: Mapping[str, str] = field(default_factory=dict)
    published: Published = field(default_factory=Published)
    batching: BatchingDescription | None = None
    processing: Mapping[str, str] = field(default_factory=dict)
    by_request: bool = False
    by_sequence: bool = False
    pipeline: PipelineDescription | None = None
    memory_bytes: int = 0
    made_up: bool = False


class Cancellable(Protocol):
    """A request that was submitted.

    times: Once it was run, the seconds that it waited and those of its run; None before.
    """

    @property
    def times(self) -> tuple[float, float] | None: ...

    def cancel(self) -> None:
        """Cancel it; its reply is not called. No effect after the reply."""

    def when_over(self, then: Callable[[], None]) -> bool:
        """Have `then` called once its run is over; False where it is in none.

        A run cannot be stopped at once: it goes on for a while after `cancel` or the deadline.
        """


class RequestQueue(Protocol):
    """Accepts requests until it is closed."""

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = ...,
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> Cancellable:
        """Queue a request; its reply is called once, on the event loop, unless it is cancelled.

        inputs: The arrays by name, already checked against the specs of the inputs.
        reply: Called as `reply(outputs, None)` or `reply(None, error)`.
        deadline: Seconds on the monotonic clock; default never.
        timeout: The limit behind the deadline in seconds, for the message; default: what is left.
        requests: The number of coalesced requests that this one stands for; default 1.

        Raises Overloaded, NotReady or DeadlineExceeded.
        """

    def close(self) -> None:
        """Accept no more requests, and fail queued ones with NotReady."""


class RunNow(Protocol):
    """Runs inputs on the event loop, for short runs only."""

    def __call__(
        self, inputs: Arrays, arrived: float, rows: int, requests: int, /
    ) -> RunResult | None:
        """Give the outputs or the error; None where the request must be submitted instead.

        `inputs` hold `rows` rows of `requests` requests, the first of which `arrived` then, in
        seconds on the monotonic clock. Raises NotReady.
        """


class Engine(Protocol):
    """Runs one version. Every method is called on the event loop.

    leases: The requests that hold it.
    inputs, outputs: The specs, in the model's order.
    optional_inputs: The specs of inputs that a request may leave out. One that sets any shares a
        run with no other: they need not have rows.
    timeout: The longest that a request may take, in seconds.
    example: Inputs that the model accepted at load; None where none were found.
    example_outputs: What it answered to those; None where that is not known or not short.
    """

    leases: LeaseCount
    inputs: Sequence[TensorSpec]
    optional_inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    timeout: float
    example: Arrays | None
    example_outputs: Outputs | None

    @property
    def by_tensors(self) -> BatchEngine | None:
        """What answers requests that are tensors; None where the model takes something else."""

    @property
    def waiting(self) -> int:
        """The number of queued requests."""

    def describe(self) -> EngineDescription:
        """Describe it as it is now."""

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        """The nodes of the model, each with the provider that runs it; from any thread."""

    def close(self) -> None:
        """Accept no more requests, fail queued ones with NotReady, and free what it holds."""


class BatchEngine(Engine, RequestQueue, Protocol):
    """Answers requests of tensors, several in one run where their rows are independent.

    labels: The names of the model's classes by index; empty where it has none.
    """

    labels: Sequence[str]

    def room_for(self, priority: int) -> int:
        """How many more requests of one row and of this priority may be queued."""

    def check_room(self, priority: int) -> None:
        """Raise Overloaded where no request of one row and of this priority may be queued."""

    @property
    def inline_rows(self) -> int:
        """The rows that `run_now` may run in one run.

        1 where it may not be used: the model is slow, unpredictable, not batched, or not on the
        CPU.
        """

    @property
    def run_now(self) -> RunNow:
        """Runs on the event loop before returning."""

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        """Open another queue on the same model, whose runs are not counted in metrics.

        max_requests: Requests in that queue at most.
        shadow: Whether its requests run only while no other request waits for the device.
        """


class RequestNotes(NamedTuple):
    """What a request says beside its inputs.

    parameters: By name.
    caller: The name of its caller; "": callers need no key.
    no_store: Whether its answer is not to be kept, nor to be one that was.
    sequence: The sequence that its header x-sequence-id names; "": it has none.
    """

    parameters: Mapping[str, object] = MappingProxyType({})
    caller: str = ""
    no_store: bool = False
    sequence: str = ""


class NotedTicket(Cancellable, Protocol):
    """A request that was submitted with what it says.

    remembered: Whether it is answered without a run of its own.
    """

    remembered: bool


@runtime_checkable
class NotedEngine(Protocol):
    """An engine that answers by what a request says beside its inputs, too."""

    def submit_with(
        self,
        notes: RequestNotes,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = ...,
        timeout: float | None = None,
        priority: int = 0,
    ) -> NotedTicket:
        """As `RequestQueue.submit`. Raises InvalidInput and SequenceEnded, too."""


class Measured(NamedTuple):
    """An engine was measured, and serves by that from now on.

    unbatched: Whether batching stays disabled, by what requests have shown.
    """

    engine: Engine
    found: ProfileResult
    unbatched: bool


class Unmeasured(NamedTuple):
    """An attempt to measure an engine came to nothing.

    again_in: Seconds until the next one; None: there is none.
    """

    engine: Engine
    reason: str
    again_in: float | None


class Doubted(NamedTuple):
    """The runs of an engine are not as its profile says; it is measured again."""

    reason: str


EngineEvent = BatchEvent | Measured | Unmeasured | Doubted
"""What an engine reports; its batches among it."""


class VersionDirectory(Protocol):
    """The versions that serve, for an engine that is made of others."""

    def lease(self, model: str, version: str | None = None) -> BatchEngine:
        """Hold the version that answers now; `leases.release()` gives it back.

        version: Its number; default None: the model's default.

        Raises ModelNotFound, VersionNotFound, NotReady, or InvalidInput where it takes no tensors.
        """


@dataclass(frozen=True, slots=True)
class Site:
    """Where an engine serves.

    model, number: The version.
    observe: Takes each EngineEvent, on the event loop.
    directory: The other models.
    """

    model: str
    number: int
    observe: Callable[[EngineEvent], None]
    directory: VersionDirectory


class OpenedVersion(Protocol):
    """A version that is open, and not started yet.

    signature: What callers must know of it.
    properties: The metadata of its file.
    published: What its manifest says, and who signed it.
    """

    @property
    def signature(self) -> Signature: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def published(self) -> Published: ...

    def start(self, site: Site) -> Engine:
        """Serve it, on the event loop. The engine closes what was opened."""

    def close(self) -> None:
        """Free what it holds: it is not started."""


class EngineFactory(Protocol):
    """Opens the versions of one kind of folder.

    file: The name of the file that a version's folder has which is of this kind.
    """

    file: str

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """Open a version; on a thread. `token` cancels that, and is told what it is at.

        Raises LoadFailed with the reason, Untrusted and WorkCancelled.
        """

    def look(self) -> None:
        """Look at the engines that serve, now and then: whether they run as expected."""

    def rest(self) -> None:
        """Let go of what only loads need: none goes on."""

    def close(self) -> None:
        """Begin nothing more on the side. Engines are closed by themselves."""


def close_when_idle(engine: Engine, then: Callable[[], None] | None = None) -> None:
    """Close an engine once no request holds it, and call `then`."""

    def close() -> None:
        engine.close()
        if then is not None:
            then()

    engine.leases.when_idle(close)
