"""Types shared by the steps of a pipeline, and the facts of the models that run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from cohort.batching import Times
from cohort.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    NotReady,
    Overloaded,
    RunRefused,
    quoted,
)
from cohort.pipelines.graph import GraphStep
from cohort.pipelines.wiring import MemberFacts
from cohort.profiling import is_along_axis_0
from cohort.registry import BatchEngine, Engine, LeaseCount, RequestQueue


class StepEnded(NamedTuple):
    """The report of a step that ended or was skipped.

    step: The name of the step.
    model, version: The model and version that ran the step, or would have run it.
    code: OK, the error's name, Cancelled, or Skipped.
    seconds: Time from the step's request to the reply.
    rows: Number of rows that it ran for; 0 if steps take the request as a whole.
    times: The times of its only or first request; default None: it did not run.
    """

    step: str
    model: str
    version: str
    code: str
    seconds: float
    rows: int
    times: Times | None = None


StepObserver = Callable[[StepEnded], None]


class Hired(NamedTuple):
    """The leased model of one step of a request.

    queue: Accepts the step's request.
    leases: Counts the lease until it is released.
    facts: The specs and properties of the model.
    version: The version number, for metrics.
    """

    queue: RequestQueue
    leases: LeaseCount
    facts: MemberFacts
    version: str


class Hiring(Protocol):
    """Source of leased models for the steps of a request."""

    def hire_all(self, steps: Mapping[str, GraphStep], hired: dict[str, Hired]) -> None:
        """Lease the model of each step into `hired`. Raises a CohortError."""


def facts_of(engine: Engine) -> MemberFacts:
    """Return the facts of a loaded model."""
    description = engine.describe()
    batching, pipeline = description.batching, description.pipeline
    by_rows, depth = False, 0
    if pipeline is not None:
        by_rows, depth = pipeline.by_rows and not description.by_request, pipeline.depth
    elif batching is not None and not batching.profile.mixed:
        trusted = batching.policy.trust is not False
        proven = batching.rows.independent and is_along_axis_0(batching.rows)
        by_rows = trusted or (proven and not description.by_request)
    return MemberFacts(
        list(engine.inputs), list(engine.optional_inputs), list(engine.outputs), by_rows, depth
    )


def at_step(error: CohortError, step: str, *, callers: bool = True) -> CohortError:
    """Return the error of a step with the step's name in its message.

    callers: True if all tensors of the step come from the client. Otherwise InvalidInput becomes
        InferenceFailed, because other steps made the tensors and the client cannot correct them.
    """
    message = f"step {quoted(step)}: {error.message}"
    made: CohortError
    match error:
        case InvalidInput() if not callers:
            made = InferenceFailed(message)
        case RunRefused():
            made = RunRefused(message)
        case InvalidInput():
            made = InvalidInput(message)
        case Overloaded():
            made = Overloaded(message, retry_after=error.retry_after)
        case NotReady():
            made = NotReady(message, retry_after=error.retry_after)
        case DeadlineExceeded():
            made = DeadlineExceeded(error.timeout)
            made.message = message
        case InferenceFailed():
            made = InferenceFailed(
                message, blames_input=error.blames_input, device_lost=error.device_lost
            )
        case _:
            made = NotReady(message)  # the model no longer exists
    made.__cause__ = error
    return made


def tensor_engine(engine: Engine | None) -> BatchEngine | None:
    """Return the engine that accepts tensors, or None if there is none."""
    return None if engine is None else engine.by_tensors
