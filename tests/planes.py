"""Planes over a registry, for tests that need no process around them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from cohort.connections.memory import MemoryBudget
from cohort.errors import CohortError
from cohort.metrics import Metrics
from cohort.operating import ControlPlane, Description, Lifecycle, ProcessPlane
from cohort.registry import Registry
from cohort.rollouts import Rollouts
from cohort.scheduling import Fault
from cohort.serving import ConcurrencyLimit, DataPlane, Lease, Outputs
from cohort.serving.observing import Observer
from cohort.session import default_chain
from cohort.tensors import Arrays


async def nothing() -> None:
    """Reconcile with no disk, and save to no folder."""


async def infer(
    lease: Lease,
    arrays: Arrays,
    *,
    timeout: float | None = None,
) -> Outputs:
    """Submit a request and wait for its outputs, in the model's order. Raises its error."""
    answer: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()

    def reply(outputs: Outputs | None, error: CohortError | None) -> None:
        if error is not None:
            answer.set_exception(error)
        elif outputs is not None:
            answer.set_result(outputs)

    lease.submit(arrays, reply, timeout=timeout)
    return await answer


def make_rollouts(registry: Registry) -> Rollouts:
    """No rollouts yet; events go nowhere."""
    return Rollouts(catalog=lambda: registry.catalog, observe=lambda event: None)


def make_data_plane(
    registry: Registry,
    metrics: Metrics,
    rollouts: Rollouts | None = None,
    *,
    limit: ConcurrencyLimit | None = None,
    observer: Observer | None = None,
    gather: Callable[[Callable[[], None]], None] = lambda collect: collect(),
) -> DataPlane:
    """Make a data plane that coalesces without delay. Default limit: 4096 requests in progress."""
    return DataPlane(
        registry,
        metrics,
        make_rollouts(registry) if rollouts is None else rollouts,
        default_model=None,
        limit=ConcurrencyLimit(4096) if limit is None else limit,
        memory=MemoryBudget(2**30),
        gather=gather,
        observer=observer,
    )


def make_control_plane(
    registry: Registry,
    metrics: Metrics,
    rollouts: Rollouts | None = None,
    *,
    reconcile: Callable[[], Awaitable[None]] = nothing,
    save: Callable[[], Awaitable[None]] = nothing,
    problems: Callable[[], Sequence[object]] = list,
    faults: Callable[[], Sequence[Fault]] = tuple,
    allow_empty: bool = False,
) -> ProcessPlane:
    """Return a control plane that finds nothing wrong on disk, unless `problems` reports it."""
    lifecycle = Lifecycle(
        registry,
        loading_reason=lambda: "loading models",
        faults=faults,
        allow_empty=allow_empty,
    )
    return ProcessPlane(
        registry,
        metrics,
        make_rollouts(registry) if rollouts is None else rollouts,
        lifecycle,
        reconcile=reconcile,
        save=save,
        problems=problems,
        default_chain=default_chain(["cpu"]),
    )


async def health_of(plane: ControlPlane, models: frozenset[str] | None = None) -> Description:
    """Return the health that the plane shows to a caller who may see `models`; default: all."""
    return await plane.health(plane.limited_to(models))
