"""The ports between the registry, the engines, and their users.

An engine answers the requests of one version. A factory makes the engines of all versions whose
folder holds a certain file, such as `model.onnx` (`cohort.onnx_engine`). The registry uses
factories and engines; planes and rollouts use engines. All of them use only the Protocols below,
with plain specs and arrays (docs/contributing/decisions/0009, 0056).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from cohort.batching import BatchEvent, BatchPolicy, Outputs, Reply, RunResult, Times
from cohort.generation import (
    GenerationReply,
    GenerationRequest,
    Piece,
    PreparedGeneration,
    Sampling,
    ToolReader,
)
from cohort.profiling import ProfileResult
from cohort.registry.source import Source
from cohort.repository import Published
from cohort.row_independence import NOT_READ, RowVerdict
from cohort.session import AssignedNode, CancellationToken, Metadata, Placement, Signature
from cohort.tensors import Arrays, TensorSpec


class LeaseCount:
    """Counts the requests that hold an engine, and calls a function when no request does."""

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
        """Call `then` when the count falls to 0; immediately if it is 0."""
        self._on_idle = then
        if not self.count:
            then()


@dataclass(frozen=True, slots=True)
class BatchingDescription:
    """The sharing of runs between requests.

    policy: The batch policy in force, which the profile or a row check may have restricted.
    profile: The measurements.
    unpredictable: Why the duration of a run cannot be estimated, so that no run executes on the
        event loop; "" if it can.
    rows: The analysis of whether rows of a run influence each other; default: not known.
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
    serving: The version that runs it now; None if it is not known.
    inputs: The sources of each input of the model: the first of these tensors that exists is used.
    when: Its condition; "" if it always runs.
    each: The tensors whose items are rows of the step; empty: it runs for rows of the request.
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
    outputs: The sources of each output: the first of these tensors that exists is used.
    conditions: "rows" if conditions are decided for each row, "request" for the whole; "": it has
        no conditions.
    row_by_row: Steps whose models may mix rows. Their rows run one by one, as single requests do.
    by_rows: True if the answer of a row is known not to depend on the other rows of its request.
    depth: The depth of nested pipelines, this one included.
    """

    steps: Sequence[StepDescription]
    outputs: Mapping[str, Sequence[str]]
    conditions: str
    row_by_row: Sequence[str]
    by_rows: bool
    depth: int

    @property
    def needs(self) -> frozenset[tuple[str, int | None]]:
        """The models that it runs, each with the version; None: the default version."""
        return frozenset((step.model, step.version) for step in self.steps)


@dataclass(frozen=True, slots=True)
class TextDescription:
    """A language model.

    context_length: The maximum of tokens of a prompt and its answer.
    chats: True if it has a chat template.
    cache_bytes: The maximum bytes of its cache; default 0: not known.
    """

    context_length: int
    chats: bool
    cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """An engine and the way it runs its model, for operators.

    metadata: The metadata in the model's file.
    placement: The execution providers wanted and active.
    device: The device that runs use, such as "cpu" or "cuda:0".
    files: The SHA-256 of its files, in hex, by their paths in the version's folder; default: empty.
    published: Its manifest and the manifest's signer; default: no manifest.
    batching: The sharing of runs; default None: runs of this engine are not shared.
    processing: The preprocessing of inputs, described in sentences by input name; default: empty.
    by_request: True if processing around the model may make a row depend on others of its request.
    by_sequence: True if requests must name a sequence.
    pipeline: The models that it consists of; default None: it is a model itself.
    text: The language model; default None: it is another kind of model.
    memory_bytes: The growth of the process's memory while the version was loaded, together with
        other loads at the same time; default 0: not known.
    made_up: True if its example has synthetic numbers; default False.
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
    text: TextDescription | None = None
    memory_bytes: int = 0
    made_up: bool = False


class Cancellable(Protocol):
    """A request that was submitted. After its end it holds no reply, which may refer to it.

    times: After its run, the seconds that it waited, those of its run, and the run; None before.
    """

    @property
    def times(self) -> Times | None: ...

    def cancel(self) -> None:
        """Cancel the request; its reply is not called. No effect after the reply."""

    def when_over(self, then: Callable[[], None]) -> bool:
        """Call `then` once its run has ended; return False if it is not in a run.

        A run cannot be stopped at once: it continues for a while after `cancel` or the deadline.
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
        timeout: The limit behind the deadline in seconds, for messages; default: the time left.
        requests: The number of coalesced requests in this one; default 1.

        Raises Overloaded, NotReady or DeadlineExceeded.
        """

    def close(self) -> None:
        """Accept no more requests, and fail queued ones with NotReady."""


class RunNow(Protocol):
    """Runs inputs on the event loop, for short runs only."""

    def __call__(
        self, inputs: Arrays, arrived: float, rows: int, requests: int, /
    ) -> RunResult | None:
        """Return the outputs or the error; None if the request must be submitted instead.

        `inputs` hold `rows` rows of `requests` requests. The first of them `arrived` at this time,
        in seconds on the monotonic clock. Raises NotReady.
        """


class Engine(Protocol):
    """Runs one version. Every method is called on the event loop.

    leases: The requests that hold it.
    inputs, outputs: The specs, in the model's order.
    optional_inputs: The specs of inputs that a request may leave out. A request that sends one runs
        alone, because these inputs need not have rows.
    timeout: The maximum time that a request may take, in seconds.
    example: Inputs that the model accepted at load; None if no example was found.
    example_outputs: The model's outputs for the example; None if they are not known or not short.
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
        """The engine for requests that are tensors; None if the model accepts other data."""

    @property
    def waiting(self) -> int:
        """The number of queued requests."""

    def describe(self) -> EngineDescription:
        """Describe the engine in its current state."""

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        """Return the nodes of the model, each with the provider that runs it; from any thread."""

    def close(self) -> None:
        """Accept no more requests, fail queued ones with NotReady, and free its resources."""


class BatchEngine(Engine, RequestQueue, Protocol):
    """Answers requests of tensors, several in one run if their rows are independent.

    labels: The names of the model's classes by index; empty if it has no names.
    """

    labels: Sequence[str]

    def room_for(self, priority: int) -> int:
        """Return how many more requests of one row and of this priority may be queued."""

    def check_room(self, priority: int) -> None:
        """Raise Overloaded if a request of one row and of this priority cannot be queued."""

    @property
    def inline_rows(self) -> int:
        """The rows that `run_now` may run in one run.

        1 if `run_now` may not be used: the model is slow, unpredictable, not batched, or not on the
            CPU.
        """

    @property
    def run_now(self) -> RunNow:
        """Runs on the event loop before returning."""

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        """Open another queue on the same model, whose runs are not counted in metrics.

        max_requests: The maximum of requests in the queue.
        shadow: True if its requests run only while no other request waits for the device.
        """


class TokenUse(Protocol):
    """The charge of a request to a language model for its tokens, on the event loop."""

    def pieces(self, pieces: Sequence[Piece]) -> None:
        """Count new pieces of the answer."""

    def settle(self) -> None:
        """Give back what was not used, at the end of the request."""


class RequestNotes(NamedTuple):
    """The parts of a request that are not inputs.

    parameters: The parameters by name.
    caller: The name of its caller; "": callers need no key.
    no_store: True if its answer must neither come from a cache nor be stored in one.
    sequence: The sequence in its header x-sequence-id; "": it has no such header.
    variant: The rollout's variant that it is for, if the model is a language model; "": no variant.
    charge: Charges its caller for its prepared prompts, if the model is a language model. Raises
        Overloaded. None: the caller has no quota of tokens.
    """

    parameters: Mapping[str, object] = MappingProxyType({})
    caller: str = ""
    no_store: bool = False
    sequence: str = ""
    variant: str = ""
    charge: Callable[[Sequence[PreparedGeneration]], TokenUse] | None = None


class NotedTicket(Cancellable, Protocol):
    """A request that was submitted with RequestNotes.

    remembered: True if it is answered from a cache, without a separate run.
    """

    remembered: bool


@runtime_checkable
class NotedEngine(Protocol):
    """An engine whose answers may also depend on RequestNotes."""

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
        """Queue a request as `RequestQueue.submit` does. Also raises InvalidInput and
        SequenceEnded.
        """


@runtime_checkable
class TextEngine(Protocol):
    """An engine of a language model, which answers in pieces.

    context_length: The maximum of tokens of a prompt and its answer.
    chats: True if it has a chat template.
    end_tokens: The ids of tokens that end an answer.
    """

    @property
    def context_length(self) -> int: ...

    @property
    def end_tokens(self) -> Collection[int]: ...

    @property
    def chats(self) -> bool: ...

    @property
    def sampling(self) -> Sampling:
        """The model's defaults, for fields that a request leaves out."""

    def read_tools(self) -> ToolReader | None:
        """Return a reader of calls of tools for one choice; None if the model makes none."""

    def prepare(self, request: GenerationRequest) -> PreparedGeneration:
        """Tokenize the prompt and check the request's limits, on any thread.

        Nothing of the cache is allocated. Raises InvalidInput; its `parameter` names the field.
        """

    def generate(
        self,
        prepared: PreparedGeneration,
        reply: GenerationReply,
        *,
        deadline: float = ...,
        timeout: float | None = None,
        priority: int = 0,
        caller: str = "",
        variant: str = "",
    ) -> Cancellable:
        """Queue a prepared request; its reply is called on the event loop until it is cancelled.

        caller: The name of its caller, for fairness between callers; "": not known.
        variant: The rollout's variant that it is for, for metrics; "": no variant.

        The other arguments are as in `RequestQueue.submit`. Raises Overloaded, NotReady or
        DeadlineExceeded.
        """


@runtime_checkable
class TokenCounter(Protocol):
    """An engine whose only input is texts [N] that its tokenizer turns into ids."""

    def count_tokens(self, inputs: Arrays, check: Callable[[], None]) -> int:
        """Return the number of ids of a request's inputs, on any thread.

        check: Called repeatedly; its exception ends the work.

        Raises InvalidInput.
        """


class NotedQueue:
    """Submits requests with the notes of a caller's request. Is a `RequestQueue`.

    engine: Runs them; `close` does not close it.
    notes: The notes.
    """

    __slots__ = ("_engine", "_notes")

    def __init__(self, engine: NotedEngine, notes: RequestNotes) -> None:
        self._engine = engine
        self._notes = notes

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> NotedTicket:
        """See `RequestQueue`."""
        return self._engine.submit_with(
            self._notes, inputs, reply, deadline=deadline, timeout=timeout, priority=priority
        )

    def close(self) -> None:
        """Do nothing: the engine belongs to others."""


class Measured(NamedTuple):
    """An engine was measured, and uses the result from now on.

    unbatched: True if batching stays disabled because served requests disproved it.
    """

    engine: Engine
    found: ProfileResult
    unbatched: bool


class Unmeasured(NamedTuple):
    """An attempt to measure an engine failed.

    again_in: Seconds until the next attempt; None: there is no other.
    """

    engine: Engine
    reason: str
    again_in: float | None


class ProfileStale(NamedTuple):
    """The runs of an engine differ from its profile; it is measured again."""

    reason: str


EngineEvent = BatchEvent | Measured | Unmeasured | ProfileStale
"""The events of an engine, including those of its batches."""


class VersionDirectory(Protocol):
    """The loaded versions, for an engine that consists of others."""

    def lease(self, model: str, version: str | None = None) -> BatchEngine:
        """Hold the version that answers now; `leases.release()` releases it.

        version: Its number; default None: the model's default.

        Raises ModelNotFound, VersionNotFound, NotReady, or InvalidInput if it does not accept
        tensors.
        """


@dataclass(frozen=True, slots=True)
class Site:
    """The place where an engine serves.

    model, number: The version.
    observe: Receives each EngineEvent, on the event loop.
    directory: The other models.
    """

    model: str
    number: int
    observe: Callable[[EngineEvent], None]
    directory: VersionDirectory


class OpenedVersion(Protocol):
    """A version that is open, and not started yet.

    signature: Its inputs and outputs for callers.
    properties: The metadata of its file.
    published: Its manifest and the manifest's signer.
    """

    @property
    def signature(self) -> Signature: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def published(self) -> Published: ...

    def start(self, site: Site) -> Engine:
        """Start serving, on the event loop. Closing the engine closes the opened version."""

    def close(self) -> None:
        """Free the resources of a version that is not started."""


class EngineFactory(Protocol):
    """Opens the versions of one kind of folder.

    file: The name of the file that identifies the kind in a version's folder.
    """

    file: str

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """Open a version, on a thread. `token` cancels this, and receives the current stage.

        Raises LoadFailed with the reason, Untrusted and WorkCancelled.
        """

    def check_engines(self) -> None:
        """Check from time to time whether the loaded engines run as expected."""

    def rest(self) -> None:
        """Release resources that only loads need; called when no load is running."""

    def close(self) -> None:
        """Start no more background work. The registry closes the engines."""


def close_when_idle(engine: Engine, then: Callable[[], None] | None = None) -> None:
    """Close an engine once no request holds it, and call `then`."""

    def close() -> None:
        engine.close()
        if then is not None:
            then()

    engine.leases.when_idle(close)
