"""The port between what is loaded and who uses it.

An engine answers for one version: today a batched session (`app.registry.batched_session`); a model
that answers many times, or a pipeline of models, will be others. The data plane, the control plane,
rollouts and metrics see engines only as the Protocol below, in plain specs and arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.batching import BatchPolicy, Reply
from app.profiling import ProfileResult
from app.session import Metadata, Placement
from app.tensors import Arrays, TensorSpec


class LeaseCount:
    """How many requests hold an engine, and what happens when none does any more."""

    __slots__ = ("_on_idle", "count")

    def __init__(self) -> None:
        self.count = 0
        self._on_idle: Callable[[], None] | None = None

    def release(self, count: int = 1) -> None:
        """Give leases back."""
        self.count -= count
        if self._on_idle is not None and not self.count:
            self._on_idle()

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` whenever the count falls to 0; at once where it is 0 now."""
        self._on_idle = then
        if not self.count:
            then()


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """What an engine is made of, for people.

    `device` is the device that runs use, `cpu` or `cuda:0`; `policy` the batch policy in force,
    which the profile or a row check may have narrowed.
    """

    metadata: Metadata
    placement: Placement
    device: str
    policy: BatchPolicy
    profile: ProfileResult


class Cancellable(Protocol):
    """A request that was submitted."""

    def cancel(self) -> None:
        """Give its place up; the reply is not called."""


class RequestQueue(Protocol):
    """Takes requests until it is closed."""

    def submit(
        self, inputs: Arrays, reply: Reply, *, deadline: float = ..., requests: int = 1
    ) -> Cancellable:
        """Queue a request; `reply(outputs, error)` is called once, on the loop, unless cancelled.

        `deadline` is on the monotonic clock. Raises Overloaded, NotReady or DeadlineExceeded.
        """

    def close(self) -> None:
        """Take no more requests, and refuse those that wait with NotReady."""


class Engine(RequestQueue, Protocol):
    """Answers the requests of one version. Everything here happens on the event loop.

    `outputs` come in the model's order; `labels` are the names of the model's classes by index,
    empty where it has none; `timeout` is the longest that a request may take, in seconds;
    `example` is inputs that the model was seen to take, None where none were found.
    """

    leases: LeaseCount
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    labels: Sequence[str]
    timeout: float
    example: Arrays | None

    @property
    def waiting(self) -> int:
        """How many requests are queued."""

    @property
    def inline_rows(self) -> int:
        """How many requests of one row may be run at once on the event loop, with `run_now`.

        1 where none may: the model is slow, not batched, or not on the CPU.
        """

    def run_now(
        self, inputs: Arrays, reply: Reply, *, arrived: float, rows: int, requests: int
    ) -> bool:
        """Run on the loop before returning, and call `reply`; False where others wait already.

        `inputs` hold `rows` rows, of which each of `requests` has some; they `arrived` then, on the
        monotonic clock. Raises NotReady.
        """

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        """A second queue on the same model, whose runs count in no metrics.

        As a `shadow` it runs only while no other request waits for the device.
        """

    def describe(self) -> EngineDescription:
        """What it is made of, as of now."""
