"""Fakes that a test steps through: no sleeps, no guesses about time."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from unittest import mock

import numpy as np

from cohort.batching import (
    Batcher,
    BatchEvent,
    BatchingDisabled,
    Outputs,
    Ran,
    RequestCancelled,
    Ticket,
)
from cohort.errors import CohortError, InferenceFailed
from cohort.metrics import Metrics, ServerMetrics
from cohort.operating import at_once
from cohort.registry import ModelEntry
from cohort.scheduling import Fault
from cohort.tensors import Array, Arrays
from tests.waiting import PATIENCE

Loop = asyncio.AbstractEventLoop

LOOPS: Mapping[str, Callable[[], Loop]] = {"asyncio": asyncio.new_event_loop}
if sys.platform != "win32":
    import uvloop

    LOOPS = {**LOOPS, "uvloop": uvloop.new_event_loop}


def double(inputs: Arrays, control: object = None) -> Outputs:
    """Return a model: twice each input, by the inputs' names."""
    return [inputs[name] + inputs[name] for name in sorted(inputs)]  # type: ignore[operator]


class FakeRunControl:
    """A RunControl that records whether it was stopped, and releases all runs."""

    def __init__(self, run: ControlledRun) -> None:
        self.stopped = False
        self._run = run

    def stop(self) -> None:
        self.stopped = True
        self._run.release(1000)


class ControlledRun:
    """A `run` that blocks until released. A stopped run raises as ONNX Runtime does.

    Runs block on their threads. `started(n)` waits on the loop until n runs in all have begun;
    `release(n)` lets n of them finish. `most` is the largest number of simultaneous runs.
    """

    def __init__(self, model: Callable[[Arrays], Outputs] = double) -> None:
        self.feeds: list[Arrays] = []
        self.controls: list[FakeRunControl] = []
        self.most = 0
        self._at_once = 0
        self._model = model
        self._gate = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()

    def make_control(self) -> FakeRunControl:
        control = FakeRunControl(self)
        self.controls.append(control)
        return control

    def __call__(self, inputs: Arrays, control: object) -> Outputs:
        with self._lock:
            self.feeds.append(inputs)
            self._at_once += 1
            self.most = max(self.most, self._at_once)
        self._loop.call_soon_threadsafe(self._begun.set)
        try:
            if not self._gate.acquire(timeout=PATIENCE):
                raise AssertionError("this run was never released")
            if isinstance(control, FakeRunControl) and control.stopped:
                raise InferenceFailed("terminated", blames_input=False)
            return self._model(inputs)
        finally:
            with self._lock:
                self._at_once -= 1

    async def started(self, runs: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.feeds) < runs:
                self._begun.clear()
                if len(self.feeds) < runs:
                    await self._begun.wait()

    def release(self, runs: int = 1) -> None:
        self._gate.release(runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release(1000)  # no thread outlives its test


@dataclass
class RecordedReply:
    """Records every call of a reply, so that a second call is seen as well as a missing one."""

    calls: list[tuple[Outputs | None, CohortError | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._called = asyncio.Event()

    def __call__(self, outputs: Outputs | None, error: CohortError | None) -> None:
        self.calls.append((outputs, error))
        self._called.set()

    async def once(self) -> tuple[Outputs | None, CohortError | None]:
        """Wait for the call; a second one fails the test."""
        async with asyncio.timeout(PATIENCE):
            await self._called.wait()
        (call,) = self.calls
        return call

    async def outputs(self) -> Outputs:
        outputs, error = await self.once()
        assert error is None, repr(error)
        assert outputs is not None
        return outputs

    async def error(self) -> CohortError:
        outputs, error = await self.once()
        assert outputs is None
        assert error is not None
        return error


class ManualScheduler:
    """A scheduler that runs a batch when the test calls it, before returning."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self, batcher: Batcher) -> None:
        self.woken += 1

    def run_next(self, batcher: Batcher, now: float | None = None) -> list[Ticket]:
        """Take, execute and finish one batch; returns its tickets."""
        decision = batcher.next_batch(asyncio.get_running_loop().time() if now is None else now)
        assert not isinstance(decision, float), f"nothing to run for {decision} s"
        batch = batcher.take(decision, decision.place)
        batch.execute()
        batcher.finish(batch)
        return batch.tickets

    def run_all(self, batcher: Batcher) -> None:
        while batcher.waiting:
            self.run_next(batcher)


@dataclass
class RecordedEvents:
    """An observer that records every event."""

    events: list[BatchEvent] = field(default_factory=list)

    def __call__(self, event: BatchEvent) -> None:
        self.events.append(event)

    @property
    def runs(self) -> list[Ran]:
        return [event for event in self.events if isinstance(event, Ran)]

    @property
    def left(self) -> list[str]:
        return [event.stage for event in self.events if isinstance(event, RequestCancelled)]

    @property
    def off(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, BatchingDisabled)]


def let_pass(batcher: Batcher, deadline: float) -> None:
    """Make it `deadline` for the batcher, and let its timer fire."""
    with mock.patch("cohort.batching.batcher.monotonic", return_value=deadline + 1e-3):
        batcher._expire()


def assert_same(got: Array, wanted: Array, tolerance: float = 0.0) -> None:
    """Assert equal datatypes, shapes and values; numbers to within `tolerance`."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if got.dtype.kind == "O" or not tolerance:
        np.testing.assert_array_equal(got, wanted)
    else:
        numbers = np.asarray(got, float), np.asarray(wanted, float)
        np.testing.assert_allclose(*numbers, rtol=tolerance, atol=tolerance)


def assert_empty(batcher: Batcher) -> None:
    """Assert that no request is left in any queue, batch or count."""
    assert batcher.idle
    assert batcher.waiting == 0
    assert not batcher.running
    assert not batcher._queues


@dataclass
class FakeServer:
    """A server for `ServerMetrics` that is healthy and holds nothing."""

    serving: Mapping[str, bool] = field(default_factory=dict)
    ready: bool = False
    latest: Collection[Fault] = ()
    used: int = 0
    maximum: int = 0
    problems: Collection[str] = ()
    scanning_seconds: float = 0.0
    answered: int = 0


def make_metrics(*, faults: Collection[Fault] = ()) -> Metrics:
    """Return the metrics of a process without rollouts and without the fast HTTP protocol."""
    metrics, server = Metrics(), FakeServer(latest=faults)
    metrics.register(ServerMetrics(server, server, server, server, server, None))
    return metrics


def exposed(
    metrics: Metrics, models: Iterable[ModelEntry] = (), *, openmetrics: bool = False
) -> str:
    """All metrics as text, written in one go."""
    writing = metrics.write(models, metrics.process_families(), openmetrics=openmetrics)
    return b"".join(at_once(writing)).decode()
