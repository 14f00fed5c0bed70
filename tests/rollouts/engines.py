"""A live rollout over engines whose copies a test answers, and the events it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from cohort.batching import Outputs
from cohort.errors import CohortError
from cohort.registry import Catalog, State
from cohort.rollouts import LiveRollout, RolloutEvent, parse_rollouts
from cohort.rollouts.units import SLOT_SECONDS
from cohort.tensors import Arrays, TensorSpec
from tests.engines import ControlledEngine, ControlledQueue, make_catalog, make_entry
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


class Events(list[RolloutEvent]):
    """Observed events, with a wait for them."""

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


def make_engine() -> ControlledEngine:
    """Return an engine with one input and one output of scores."""
    return ControlledEngine((INPUT,), (OUTPUT,))


class LiveRig:
    """A live rollout of model "m" over versions 1, 2 and 3, all READY."""

    def __init__(self, text: str) -> None:
        self.engines: Mapping[int, ControlledEngine] = {
            number: make_engine() for number in (1, 2, 3)
        }
        self.states = dict.fromkeys(self.engines, State.READY)
        self.events = Events()
        self.now = 0.0
        self.tried: float | None = None  # seconds of each copy's run; None: the test answers
        self.live = LiveRollout(self.config(text), self.catalog, self.events.observe)

    @staticmethod
    def config(text: str) -> Any:
        return parse_rollouts(f"m: {{{text}}}", "rollouts.yaml")["m"]

    def configure(self, text: str) -> None:
        self.live.configure(self.config(text))

    def queue(self, version: int) -> ControlledQueue:
        """Return the side queue in use of a version."""
        return self.engines[version].side_queues[-1]

    def copies(self, version: int) -> int:
        """Return how many copies wait for a version."""
        queues = self.engines[version].side_queues
        return queues[-1].waiting if queues else 0

    def catalog(self) -> Catalog:
        entries = [
            make_entry(number, engine, state=self.states[number])
            for number, engine in self.engines.items()
        ]
        return make_catalog({"m": entries})

    def respond(
        self,
        variant: str,
        outputs: Outputs | None = None,
        error: CohortError | None = None,
        *,
        times: int = 1,
        tight_deadline: bool = False,
        seconds: float = 0.0,
        caller: object = None,
        reply: Callable[[Outputs | None, CohortError | None], None] = lambda outputs, error: None,
        unwritten: Exception | None = None,
    ) -> None:
        """Reply to requests that `variant` was chosen for, one after the other.

        unwritten: Error from writing the response; default None: no error.
        """
        version = self.live.rollout.variants[variant].version
        for _ in range(times):
            self.now += SLOT_SECONDS * 1.5  # a separate unit
            observed = self.live.observe(variant, version, caller)
            replied = observed.submitted(inputs(), [OUTPUT], reply, tight_deadline=tight_deadline)
            replied(outputs, error)
            observed.close(error or unwritten, now=self.now, seconds=seconds)
            if self.tried is not None:
                self.answer_copies(self.tried)

    def answer_copies(self, seconds: float) -> None:
        """Answer all copies, by runs that took so long."""
        for engine in self.engines.values():
            for request in [one for queue in engine.side_queues for one in queue.requests]:
                if request.waiting:
                    request.times = (0.0, seconds, None)
                    request.answer(scores())

    def weighed(self, candidate: str = "canary") -> tuple[float, float, float, float]:
        """Errors by now: all and bad of the baseline, all and bad of the candidate."""
        self.live.judge()
        seen = self.live.evidence.candidates[candidate].errors
        return (seen.baseline.total, seen.baseline.bad, seen.variant.total, seen.variant.bad)
