"""The steps of a pipeline with the models that run them now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

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
    """A step of a request ended, or ran for no row of it.

    step: Its name.
    model, version: What ran it, or would have.
    code: OK, the error's name, Cancelled, or Skipped.
    seconds: From its request to the reply.
    rows: The rows that it ran for; 0 where those are not told apart.
    """

    step: str
    model: str
    version: str
    code: str
    seconds: float
    rows: int


StepObserver = Callable[[StepEnded], None]


class Hired(NamedTuple):
    """What runs a step of one request.

    queue: Takes the step's request.
    leases: Counts it, until it is released.
    facts: What is known of the model.
    version: Its number, for metrics.
    """

    queue: RequestQueue
    leases: LeaseCount
    facts: MemberFacts
    version: str


class Hiring(Protocol):
    """Finds what runs a step now."""

    def hire_all(self, steps: Mapping[str, GraphStep], hired: dict[str, Hired]) -> None:
        """Lease what runs each step, into `hired`. Raises a CohortError that names the step."""


def facts_of(engine: Engine) -> MemberFacts:
    """What a pipeline must know of a model that serves."""
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
    """The error of a step, which names it, and is of the same kind.

    callers: Whether all that the step was given is the caller's. Else what it refuses was made by
        other steps: nothing that the caller could correct, and so an InferenceFailed.
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
            made = NotReady(message)  # a model that is not there any more
    made.__cause__ = error
    return made


def tensor_engine(engine: Engine | None) -> BatchEngine | None:
    """What answers requests of tensors."""
    return None if engine is None else engine.by_tensors
