"""Versions whose copies run when a test says so, and a rollout over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from app.batching import Outputs, Reply
from app.errors import CohortError, Overloaded
from app.registry import Catalog, Engine, ModelEntry, Source, State, VersionEntry
from app.registry.engine import LeaseCount
from app.repository import ModelConfig
from app.rollouts import LiveRollout, RolloutEvent, parse_rollouts
from app.tensors import Arrays, TensorSpec
from tests.waiting import PATIENCE

T = TypeVar("T", bound=RolloutEvent)

INPUT = TensorSpec("x", "FP32", ("n", 1))
OUTPUT = TensorSpec("y", "FP32", ("n", 3))


def inputs(value: float = 0.0) -> Arrays:
    """One row."""
    return {"x": np.array([[value]], np.float32)}


def scores(best: int = 0) -> Outputs:
    """One row of scores, the highest at `best`."""
    return [np.eye(3, dtype=np.float32)[[best]]]


@dataclass
class FakeQueue:
    """Keeps what is submitted until the test replies; takes at most `max_requests`."""

    max_requests: int
    shadow: bool
    waiting: list[tuple[Arrays, Reply]] = field(default_factory=list)
    closed: bool = False

    def submit(
        self,
        arrays: Arrays,
        reply: Reply,
        *,
        deadline: float = 0.0,
        timeout: float | None = None,
        requests: int = 1,
    ) -> None:
        del deadline, timeout, requests
        if len(self.waiting) >= self.max_requests:
            raise Overloaded("full")
        self.waiting.append((arrays, reply))

    def reply(self, outputs: Outputs | None = None, error: CohortError | None = None) -> None:
        """Reply to all that wait, alike."""
        waiting, self.waiting = self.waiting, []
        for _, reply in waiting:
            reply(outputs, error)

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    """The part of an engine that rollouts use. `queues` are its side queues, oldest first."""

    def __init__(self) -> None:
        self.leases = LeaseCount()
        self.inputs, self.outputs = [INPUT], [OUTPUT]
        self.queues: list[FakeQueue] = []

    def side_queue(self, *, max_requests: int, shadow: bool) -> FakeQueue:
        self.queues.append(FakeQueue(max_requests, shadow))
        return self.queues[-1]

    @property
    def queue(self) -> FakeQueue:
        """The side queue in use."""
        return self.queues[-1]

    @property
    def copies(self) -> int:
        """How many copies wait."""
        return len(self.queues[-1].waiting) if self.queues else 0


class Events(list[RolloutEvent]):
    """What was observed, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._come = asyncio.Event()

    def observe(self, event: RolloutEvent) -> None:
        self.append(event)
        self._come.set()

    async def wait_for(self, kind: type[T], count: int) -> list[T]:
        """Wait until `count` events of a kind have come; return them."""
        found: list[T] = []
        async with asyncio.timeout(PATIENCE):
            while len(found := [one for one in self if isinstance(one, kind)]) < count:
                self._come.clear()
                await self._come.wait()
        return found


class LiveRig:
    """A live rollout of model "m" over versions 1, 2 and 3, all READY."""

    def __init__(self, text: str) -> None:
        self.engines: Mapping[int, FakeEngine] = {number: FakeEngine() for number in (1, 2, 3)}
        self.states = dict.fromkeys(self.engines, State.READY)
        self.events = Events()
        self.live = LiveRollout(self.config(text), self.catalog, self.events.observe)

    @staticmethod
    def config(text: str) -> Any:
        return parse_rollouts(f"m: {{{text}}}", "rollouts.yaml")["m"]

    def configure(self, text: str) -> None:
        self.live.configure(self.config(text))

    def catalog(self) -> Catalog:
        source = Source(Path("model.onnx"), "stamp", ModelConfig())
        versions = {
            number: VersionEntry(number, self.states[number], source, engine=cast("Engine", engine))
            for number, engine in self.engines.items()
        }
        return {"m": ModelEntry("m", versions)}

    def respond(
        self,
        variant: str,
        outputs: Outputs | None = None,
        error: CohortError | None = None,
        *,
        times: int = 1,
        tight_deadline: bool = False,
        started: float = 0.0,
        reply: Callable[[Outputs | None, CohortError | None], None] = lambda outputs, error: None,
    ) -> None:
        """Reply to requests that `variant` was chosen for."""
        version = self.live.rollout.variants[variant].version
        for _ in range(times):
            self.live.observe_reply(
                variant,
                version,
                [OUTPUT],
                inputs(),
                reply,
                started=started,
                tight_deadline=tight_deadline,
            )(outputs, error)

    def weighed(self, candidate: str = "canary") -> tuple[int, int, int, int]:
        """Errors by now: all and bad of the baseline, all and bad of the candidate."""
        self.live.judge()
        seen = self.live.evidence.candidates[candidate].errors.evidence
        return (seen.baseline.total, seen.baseline.bad, seen.variant.total, seen.variant.bad)
