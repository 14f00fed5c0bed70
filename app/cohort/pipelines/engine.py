"""The engine of a pipeline; it leases the models of its steps for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Self

from cohort.batching import Outputs, Reply, RunResult
from cohort.errors import CohortError, DeadlineExceeded, LoadFailed, NotReady, quoted
from cohort.observability.tracing import current_span
from cohort.pipelines.document import Pipeline
from cohort.pipelines.graph import GraphStep
from cohort.pipelines.running import PipelineRun
from cohort.pipelines.steps import Hired, Hiring, StepEnded, StepObserver, at_step, facts_of
from cohort.pipelines.wiring import MemberFacts, Wiring, connect
from cohort.registry import (
    BatchEngine,
    Catalog,
    EngineDescription,
    LeaseCount,
    NotedEngine,
    NotedQueue,
    PipelineDescription,
    RequestNotes,
    RequestQueue,
    Site,
    StepDescription,
)
from cohort.repository import PIPELINE_FILE, Published
from cohort.session import AssignedNode, Metadata, Placement
from cohort.tensors import Arrays, TensorSpec


@dataclass(frozen=True, slots=True)
class PreparedPipeline:
    """A parsed pipeline that fits its models.

    pipeline: The pipeline as written in its file.
    wiring: The pipeline connected with its models.
    timeout: The time limit of a request, in seconds.
    digest: The SHA-256 of the file, in hex.
    published: The contents and the signer of the manifest.
    """

    pipeline: Pipeline
    wiring: Wiring
    timeout: float
    digest: str
    published: Published


@dataclass(frozen=True, slots=True)
class Met:
    """The version of a model that a step leased last.

    engine: The engine that runs it.
    facts: Its specs and properties.
    version: Its number.
    """

    engine: BatchEngine
    facts: MemberFacts
    version: str


class PipelineEngine:
    """An engine that runs the models of its steps. Implements `BatchEngine` and `NotedEngine`.

    closed: True after `close`.

    prepared: The pipeline.
    site: The model and version that it serves, and the directory of models.
    catalog: Returns the catalog of loaded versions.
    observe: Called with each ended step of a client's request.
    """

    labels: Sequence[str] = ()
    optional_inputs: Sequence[TensorSpec] = ()
    inline_rows = 1
    waiting = 0  # requests wait in the queues of the models

    def __init__(
        self,
        prepared: PreparedPipeline,
        site: Site,
        *,
        catalog: Callable[[], Catalog],
        observe: StepObserver,
    ) -> None:
        self._prepared, self._site, self._catalog = prepared, site, catalog
        self._observe = observe
        self._met: dict[str, Met] = {}
        self._hired_from: Catalog | None = None  # the catalog that `_hires` was made from
        self._hires: Mapping[str, Hired] = {}
        self.closed = False
        self.leases = LeaseCount()
        self.wiring = prepared.wiring
        self.inputs: Sequence[TensorSpec] = self.wiring.inputs
        self.outputs: Sequence[TensorSpec] = self.wiring.outputs
        self.timeout = prepared.timeout
        self.example = self._find_example()
        self.example_outputs: Outputs | None = None
        for step in self.wiring.graph.steps.values():
            with suppress(CohortError):  # the first request reports the error
                self.meet(step).engine.leases.release()

    @property
    def by_tensors(self) -> Self:
        """Return this engine, because its requests are tensors."""
        return self

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> PipelineRun:
        """Begin a request; see `RequestQueue`."""
        return begin(
            self, self, inputs, reply, deadline, timeout, requests, priority, self._observe
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
    ) -> PipelineRun:
        """Begin a request, and pass `no_store` on to its models."""
        hiring = NotedHiring(self, notes) if notes.no_store else self
        return begin(self, hiring, inputs, reply, deadline, timeout, 1, priority, self._observe)

    # -- models

    def hire_all(self, steps: Mapping[str, GraphStep], hired: dict[str, Hired]) -> None:
        """See `Hiring`. The engines are cached until the catalog changes."""
        catalog = self._catalog()
        if catalog is self._hired_from:
            for one in self._hires.values():
                one.leases.count += 1
            hired.update(self._hires)
            return
        for name, step in steps.items():
            met = self.meet(step)
            hired[name] = Hired(met.engine, met.engine.leases, met.facts, met.version)
        self._hired_from, self._hires = catalog, dict(hired)

    def meet(self, step: GraphStep) -> Met:
        """Lease the engine that runs a step now. Raises a CohortError, such as NotReady."""
        version = None if step.version is None else str(step.version)
        try:
            engine = self._site.directory.lease(step.model, version)
        except CohortError as error:
            raise at_step(error, step.name) from error
        met = self._met.get(step.name)
        if met is not None and met.engine is engine:
            return met
        try:
            met = self._met[step.name] = self._look_at(step, engine)
        except LoadFailed as error:
            engine.leases.release()
            raise NotReady(
                f"model {quoted(step.model)} was replaced by a version that does not fit: {error}"
            ) from error
        return met

    def _look_at(self, step: GraphStep, engine: BatchEngine) -> Met:
        """Return the facts of a changed model. Raises LoadFailed if it no longer fits."""
        facts, known = facts_of(engine), self.wiring.members
        before = known[step.name]
        if (facts.inputs, facts.optional, facts.outputs) != (
            before.inputs, before.optional, before.outputs,
        ):  # fmt: skip
            by_step = {**{one: known[one] for one in known}, step.name: facts}
            steps = iter(self.wiring.graph.steps)
            again = connect(
                self._prepared.pipeline, lambda *_: by_step[next(steps)], self.wiring.graph
            )
            if _kinds(again) != _kinds(self.wiring):
                raise LoadFailed(f"step {quoted(step.name)}: its tensors have other datatypes")
        return Met(engine, facts, self._number_of(step.model, engine))

    def _number_of(self, model: str, engine: BatchEngine) -> str:
        entry = self._catalog().get(model)
        for number, one in {} if entry is None else entry.versions.items():
            if one.engine is not None and one.engine.by_tensors is engine:
                return str(number)
        return ""

    def _find_example(self) -> Arrays | None:
        """Return inputs made from the examples of the models; None if an input has no example."""
        found: Arrays = {}
        for step in self.wiring.graph.steps.values():
            entry = self._catalog().get(step.model)
            default = None if entry is None else entry.default
            engine = None if default is None else default.engine
            known = None if engine is None else engine.example
            for name, sources in step.sources.items():
                for one in sources:
                    if known is not None and name in known and one not in found:
                        row = known[name][:1] if known[name].ndim else known[name]
                        of_items = name in step.items and self.wiring.each[step.name].axes > 1
                        found[one] = row[None] if of_items else row
        if any(spec.name not in found for spec in self.inputs):
            return None
        return {spec.name: found[spec.name] for spec in self.inputs}

    # -- queues

    def room_for(self, priority: int) -> int:
        """Return how many more one-row requests can begin, limited by the first models' queues."""
        return min([met.engine.room_for(priority) for met in self._first()], default=1)

    def check_room(self, priority: int) -> None:
        """Raise Overloaded if the queue of a model that every request starts with is full."""
        for met in self._first():
            met.engine.check_room(priority)

    def _first(self) -> Iterable[Met]:
        steps = self.wiring.graph.steps.values()
        return [
            self._met[step.name]
            for step in steps
            if step.name in self._met and step.condition is None and not step.steps
        ]

    def run_now(self, inputs: Arrays, arrived: float, rows: int, requests: int) -> RunResult | None:
        """Return None, because requests always go through the queues of the models."""
        return None

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        """Open a queue on side queues of the models; see `BatchEngine`."""
        return PipelineSideQueue(self, max_requests=max_requests, shadow=shadow)

    # -- for operators

    def describe(self) -> EngineDescription:
        """Describe the pipeline, and the devices of its models."""
        graph, wiring = self.wiring.graph, self.wiring
        met = [self._met[name] for name in graph.steps if name in self._met]
        devices = dict.fromkeys(one.engine.describe().device for one in met)
        active = dict.fromkeys(one.engine.describe().placement.active for one in met)
        providers = ", ".join(active) or "its models'"
        return EngineDescription(
            Metadata(),
            Placement((providers,), providers, (), {}),
            ", ".join(devices),
            {PIPELINE_FILE: self._prepared.digest},
            self._prepared.published,
            pipeline=PipelineDescription(
                [self._describe_step(step) for step in graph.steps.values()],
                graph.outputs,
                wiring.conditions,
                self._row_by_row() if wiring.splits else [],
                wiring.splits,
                wiring.depth,
            ),
        )

    def _describe_step(self, step: GraphStep) -> StepDescription:
        met = self._met.get(step.name)
        serving = int(met.version) if met is not None and met.version else None
        when = "" if step.condition is None else step.condition.text
        return StepDescription(
            step.name, step.model, step.version, serving, step.sources, when, step.each
        )

    def _row_by_row(self) -> Sequence[str]:
        known = {name: self._met[name].facts for name in self._met}
        members = {**self.wiring.members, **known}
        return [name for name, facts in members.items() if not facts.by_rows]

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        """Return no nodes; each model reports its own."""
        return ()

    def close(self) -> None:
        """Reject new requests. Requests in progress hold a lease, so none is running now."""
        self.closed = True
        self._met.clear()
        self._hired_from, self._hires = None, {}


def begin(
    engine: PipelineEngine,
    hiring: Hiring,
    inputs: Arrays,
    reply: Reply,
    deadline: float,
    timeout: float | None,
    requests: int,
    priority: int,
    observe: StepObserver,
) -> PipelineRun:
    """Begin a request of a pipeline. Raises NotReady, Overloaded or DeadlineExceeded."""
    if engine.closed:
        raise NotReady("this version is being unloaded")
    now = monotonic()
    if (span := current_span()) is not None:
        observe = _both(observe, span.step)
    limit = max(deadline - now, 0.0) if timeout is None else timeout
    if deadline <= now:
        raise DeadlineExceeded(limit)
    run = PipelineRun(
        engine.wiring, hiring, inputs, reply,
        deadline=deadline, timeout=limit, requests=requests, priority=priority, observe=observe,
    )  # fmt: skip
    run.start()
    return run


def _both(first: StepObserver, second: StepObserver) -> StepObserver:
    """Return an observer that calls two others."""

    def observe(ended: StepEnded) -> None:
        first(ended)
        second(ended)

    return observe


class NotedHiring:
    """Leases of a pipeline's models for a request with notes. Implements `Hiring`."""

    def __init__(self, engine: PipelineEngine, notes: RequestNotes) -> None:
        self._engine, self._notes = engine, notes

    def hire_all(self, steps: Mapping[str, GraphStep], hired: dict[str, Hired]) -> None:
        """See `Hiring`."""
        self._engine.hire_all(steps, hired)
        for name, one in hired.items():
            if isinstance(one.queue, NotedEngine):
                hired[name] = one._replace(queue=NotedQueue(one.queue, self._notes))


class PipelineSideQueue:
    """A queue that runs copies of requests on side queues of the models, without counting them.

    engine: The pipeline.
    max_requests, shadow: As in `BatchEngine.side_queue`.
    """

    def __init__(self, engine: PipelineEngine, *, max_requests: int, shadow: bool) -> None:
        self._engine = engine
        self._max_requests, self._shadow = max_requests, shadow
        self._queues: dict[str, tuple[BatchEngine, RequestQueue]] = {}
        self._closed = False

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> PipelineRun:
        """Begin a copy; see `RequestQueue`."""
        if self._closed:
            raise NotReady("this version is being unloaded")
        return begin(
            self._engine, self, inputs, reply, deadline, timeout, requests, priority, _nobody
        )

    def hire_all(self, steps: Mapping[str, GraphStep], hired: dict[str, Hired]) -> None:
        """See `Hiring`."""
        for name, step in steps.items():
            met = self._engine.meet(step)
            engine, queue = self._queues.get(name, (None, None))
            if queue is None or engine is not met.engine:
                if queue is not None:
                    queue.close()
                queue = met.engine.side_queue(max_requests=self._max_requests, shadow=self._shadow)
                self._queues[name] = met.engine, queue
            hired[name] = Hired(queue, met.engine.leases, met.facts, met.version)

    def close(self) -> None:
        """Reject new copies, and fail queued ones with NotReady."""
        self._closed = True
        for _, queue in self._queues.values():
            queue.close()
        self._queues.clear()


def _nobody(_: StepEnded) -> None:
    """Ignore a step, because copies are not counted."""


def _kinds(wiring: Wiring) -> Mapping[str, str]:
    specs = [replace(one, shape=None) for one in (*wiring.inputs, *wiring.outputs)]
    return {f"{place} {spec.name}": spec.datatype for place, spec in enumerate(specs)}


def _is_engine(engine: PipelineEngine) -> BatchEngine:
    """Check the protocol `BatchEngine` statically."""
    return engine
