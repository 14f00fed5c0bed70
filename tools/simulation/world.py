"""One simulated life of a server (start, callers, operators, faults, stop), and its checks.

Everything between the bytes of HTTP and ONNX Runtime is the server's own code. That includes the
fast path, coalescing, batching, scheduling, the watchdog, the registry, leases, rollouts and the
drain. Sockets, threads, clocks, files and sessions are simulated.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from structlog.testing import capture_logs
from uvicorn.server import ServerState

from cohort.auth.keys import ApiKey
from cohort.batching import Batch, BatchDecision, Batcher, Ticket
from cohort.errors import InferenceFailed
from cohort.onnx_engine.batched_session import BatchedSession
from cohort.onnx_engine.preparation import PreparedVersion
from cohort.process.service import Service
from cohort.registry import Source, State
from cohort.registry.loading import LONG_SECONDS, PLACES
from cohort.rollouts.config import parse_rollouts
from cohort.session import CancellationToken
from cohort.settings import Settings
from tools.simulation.callers import Asked, Caller
from tools.simulation.models import (
    NOBODY,
    SMALLEST_TIMEOUT,
    STUBBORN_SECONDS,
    Control,
    Disk,
    Nature,
    Session,
    prepare,
)
from tools.simulation.order import KEYS, SHARES, Order
from tools.simulation.turns import Loop, Turns, in_place

STEADY = "steady"
"""A model that always has a version that can serve, and that is never unloaded."""

VOLATILE = "volatile"

DRAIN_SECONDS = 40.0
"""Maximum seconds of requests once no more are sent: more than their longest timeout."""


class Violation(AssertionError):
    """A check failed."""


class World:
    """The life that one seed gives.

    seed: Gives every decision.
    trace: Called with a line about each event; default: nothing.
    """

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.random = Random(seed)
        self.turns = Turns(self.random)
        self.models = [STEADY, STEADY, VOLATILE]
        self.server_state = ServerState()
        self.statuses: Counter[int] = Counter()
        self.service: Service | None = None
        self._trace = trace
        self._disk = Disk()
        self._sessions: list[Session] = []
        self._preparing: dict[Path, tuple[float, CancellationToken]] = {}
        self._injected: set[int] = set()
        self.priorities = self.random.choice(((0,), (-1, 0, 1)))
        self.order = Order(self.violated)
        self.order.priorities[NOBODY] = 0
        self._callers: list[Caller] = []
        self._ids = 0
        self._violations: list[str] = []
        self._draining = False

    def run(self) -> None:
        """Run this life. Raises Violation, or any error that the server should have caught."""
        loop = Loop(self.turns, self._check)
        errors: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: errors.append(context))
        with in_place(self.turns), self._simulated(), capture_logs() as logged:
            try:
                loop.run_until_complete(self._live())
            finally:
                loop.close()
        if errors:
            raise Violation(f"unhandled: {errors[0]}") from errors[0].get("exception")
        if bugs := [line for line in logged if _tells_of_a_bug(line)]:
            raise Violation(f"logged: {bugs[0]}")

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        slots = self.random.choice((1, 2, 4))
        submit, take = Batcher.submit, Batcher.take

        def submit_noted(batcher: Batcher, *args: Any, **kwargs: Any) -> Ticket:
            ticket = submit(batcher, *args, **kwargs)
            self.order.queued(batcher, ticket)
            return ticket

        def take_noted(batcher: Batcher, decision: BatchDecision, now: float) -> Batch:
            batch = take(batcher, decision, now)
            self.order.taken(batcher, decision, batch)
            return batch

        with (
            mock.patch("cohort.process.core.cores", return_value=slots),
            mock.patch("cohort.rollouts.choosing.random", Random(self.random.random()).random),
            mock.patch("cohort.rollouts.rollout.random", Random(self.random.random()).random),
            mock.patch("cohort.registry.retrying._random", Random(self.random.random())),
            mock.patch.object(Batcher, "submit", submit_noted),
            mock.patch.object(Batcher, "take", take_noted),
            mock.patch("cohort.process.core.OrtRunControl", Control),
            mock.patch("cohort.onnx_engine.factory.prepare_version", self._prepare),
            mock.patch("cohort.scheduling.devices.lower_priority"),
            mock.patch("cohort.onnx_engine.measurer.lower_priority"),
            mock.patch("cohort.onnx_engine.measurer.RETRY_SECONDS", 5.0),
            mock.patch("cohort.onnx_engine.pace_check.CHECKS", 1),
        ):
            yield

    @property
    def server(self) -> Service:
        """The service, once there is one."""
        assert self.service is not None
        return self.service

    # -- the course of events

    async def _live(self) -> None:
        draw = self.random
        self.service = service = Service(_settings(keys=len(self.priorities) > 1))
        service.keys.follow([_key(priority) for priority in self.priorities])
        self._disk.put(STEADY, 1, Nature.draw(draw, may_break=False))
        self._disk.put(VOLATILE, 1, Nature.draw(draw))
        for model in (STEADY, VOLATILE):
            self._disk.configure(model, draw)
        service.core.watchdog.start()
        self._follow()
        await service.core.registry.loaded(STEADY)
        operator = asyncio.create_task(self._operate())
        crowd = draw.choice((1, 3, 6, 12, 40))
        callers = [asyncio.create_task(self._call()) for _ in range(crowd)]
        if draw.random() < 0.4:  # stop in the middle
            await asyncio.sleep(draw.choice((0.01, 0.1, 1.0)))
        else:
            await asyncio.wait_for(asyncio.gather(*callers), 600)
        await self._stop(operator, callers)

    async def _call(self) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.001, 0.1, 0.5)))
        caller = Caller(self)
        self._callers.append(caller)
        await caller.live()

    async def _operate(self) -> None:
        draw, service, disk = self.random, self.server, self._disk
        while True:
            await asyncio.sleep(draw.choice((0.001, 0.02, 0.3, 1.0)))
            act = draw.randrange(8)
            model = draw.choice((STEADY, VOLATILE))
            number = draw.randint(1, 3)
            self.note(f"operator: act {act} on {model} {number}")
            if act == 0:
                must_serve = model == STEADY and number == 1
                disk.put(model, number, Nature.draw(draw, may_break=not must_serve))
            elif act == 1 and not (model == STEADY and number == 1):
                disk.versions[model].pop(number, None)
            elif act == 2:
                disk.configure(model, draw)
            elif act == 3 and VOLATILE in service.core.registry.catalog:
                await service.control_plane.unload(VOLATILE)
            elif act == 4:
                service.core.registry.reload_model(VOLATILE)
            elif act == 5:
                service.core.rollouts.apply(parse_rollouts(_rollout(draw), "rollouts.yaml"))
            elif act == 6:
                await service.core.registry.check_engines()
            else:
                service.core.rollouts.judge()
            self._follow()

    def _follow(self) -> None:
        self.server.core.registry.follow(self._disk.snapshot(), self.server.core.rollouts.pinned)

    async def _stop(self, operator: asyncio.Task[None], callers: list[asyncio.Task[None]]) -> None:
        service = self.server
        self.note("stopping")
        self._draining = True
        service.control_plane.begin_draining()
        operator.cancel()
        with suppress(asyncio.CancelledError):
            await operator
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.choice((0.0, 0.01, 1.0)))
        service.core.data_plane.close()
        _, late = await asyncio.wait(callers, timeout=DRAIN_SECONDS)
        if late:
            waiting = [one.id for caller in self._callers for one in caller.waiting]
            raise Violation(f"requests {waiting} were never answered")
        for caller in callers:
            caller.result()
        service.core.rollouts.close()
        service.core.registry.close()
        service.core.scheduler.close()
        service.core.watchdog.close()
        await asyncio.sleep(STUBBORN_SECONDS + 5)
        self._check_end()

    # -- what must hold

    def violated(self, what: str) -> None:
        """Report a violation; the run ends soon. Raises nothing: the server would catch it."""
        self.note(f"VIOLATION: {what}")
        self._violations.append(what)

    def answered(self, asked: Asked, answer: dict[str, Any]) -> None:
        """Check an answer."""
        status, took = asked.status, asked.answered - asked.sent
        self.statuses[status] += 1
        self.note(f"{asked.id} {asked.model}: {status} {answer.get('code', '')} after {took:.6f}")
        allowed = _STATUSES.get(status)
        why_not = "an unknown status" if allowed is None else allowed(self, asked, answer)
        if why_not:
            self.violated(f"request {asked.id} got {status} {answer}: {why_not}")

    def _ok(self, asked: Asked, answer: dict[str, Any]) -> str:
        factor = int(answer["version"]) + 1
        wanted = [[value * factor for value in row] for row in asked.rows]
        if asked.poisoned:
            return "its input cannot be computed"
        return "" if answer["outputs"]["y"] == wanted else f"wanted {wanted}"

    def _failed(self, asked: Asked, answer: dict[str, Any]) -> str:
        blamed = asked.poisoned or asked.id in self._injected
        return "" if blamed else "nothing made it fail"

    def _overloaded(self, asked: Asked, answer: dict[str, Any]) -> str:
        if found := TOO_LONG.search(answer["error"]):
            return "" if float(found[1]) > 0.5 * float(found[2]) else "it would have been in time"
        slowest = max(session.nature.seconds[0] for session in self._sessions)
        most = self._disk.smallest_queue * SHARES[asked.priority]
        full = self._ids >= most or slowest > 0.01
        return "" if full else "its queue cannot be full"

    def _not_ready(self, asked: Asked, answer: dict[str, Any]) -> str:
        return "" if self._draining or asked.model == VOLATILE else "the model has a version"

    def _too_late(self, asked: Asked, answer: dict[str, Any]) -> str:
        timeout = min(asked.timeout or SMALLEST_TIMEOUT, SMALLEST_TIMEOUT)
        over = asked.answered - asked.sent >= timeout - 1e-6
        return "" if over else "its time was not over"

    def _check(self, idle: bool) -> None:
        """Check what holds after each step of the event loop, before it waits if `idle`."""
        if self._violations:
            raise Violation(self._violations[0])
        service = self.service
        if service is None:
            return
        loads = service.core.registry._loads
        for model in service.core.registry.catalog.values():
            for entry in model.versions.values():
                engine = entry.engine
                if (
                    entry.state is State.LOADING
                    and idle
                    and not loads.source(model.name, entry.number)
                ):
                    self.violated(f"{model.name} {entry.number} is LOADING without a load")
                if idle and entry.retry_at is not None and entry.retry_at < self.turns.now - 1:
                    self.violated(f"{model.name} {entry.number} is not tried again")
                if not isinstance(engine, BatchedSession):
                    continue
                if engine.leases.count < 0:
                    self.violated(f"{model.name} has {engine.leases.count} leases")
                batcher = engine._batcher
                if batcher.waiting > batcher.policy.max_queue_size * SHARES[max(self.priorities)]:
                    self.violated(f"{model.name} has {batcher.waiting} requests queued")
                if entry.state is State.READY and batcher._closed:
                    self.violated(f"{model.name} {entry.number} is READY and closed")
                if idle and batcher.waiting:
                    self._check_waiting(batcher)
        if service.core.limit.leases < 0:
            self.violated(f"{service.core.limit.leases} requests hold a version")

    def _check_waiting(self, batcher: Batcher) -> None:
        """Check that requests have a reason to wait while the event loop is idle."""
        scheduler = self.server.core.scheduler
        if batcher not in scheduler._work:
            self.violated("requests wait that the scheduler does not know of")
            return
        if isinstance(batcher.next_batch(self.turns.now), float):
            return  # for more of them, or for their timer
        if scheduler._device(batcher.device).free_slots(self.turns.now).free > 0:
            self.violated("requests wait although a slot is free")

    def _check_end(self) -> None:
        service = self.server
        if service.core.limit.leases:
            self.violated(f"{service.core.limit.leases} leases are left")
        if service.core.memory.used:
            self.violated(f"{service.core.memory.used} bytes are left")
        if open_now := [one.number for one in self._sessions if not one.closed]:
            self.violated(f"versions were not closed: {open_now}")
        if service.core.registry.catalog:
            self.violated(f"the catalog has {list(service.core.registry.catalog)}")
        if self.turns.threads:
            self.violated(f"threads are left: {self.turns.threads}")
        for caller in self._callers:
            if caller.waiting and not caller.left and not self._draining:
                self.violated(f"request {caller.waiting[0].id} was not answered")

    def note(self, line: str) -> None:
        """Write a line of the trace."""
        if self._trace is not None:
            self._trace(f"{self.turns.now - 1000:12.6f} {line}")

    def next_id(self) -> int:
        """Return a number that no request has had."""
        self._ids += 1
        return self._ids

    def _prepare(self, source: Source, _: object, token: CancellationToken) -> PreparedVersion:
        now = self.turns.now
        if source.path in self._preparing:
            self.violated(f"{source.path.parent} is loaded twice at once")
        self._preparing[source.path] = now, token
        holding = [
            began
            for began, other in self._preparing.values()
            if not other.reason and now - began < LONG_SECONDS - 0.1
        ]
        if len(holding) > PLACES:
            self.violated(f"{len(holding)} versions are loaded at once")
        try:
            return prepare(
                source,
                self._disk,
                self.turns,
                self._sessions,
                ran=self.order.ran,
                injected=self._injected,
                violated=self.violated,
                token=token,
            )
        finally:
            del self._preparing[source.path]


def _tells_of_a_bug(line: MutableMapping[str, Any]) -> bool:
    """Return True if a log line reports anything but a failed model, device or version."""
    if line["log_level"] not in {"error", "critical"} or line["event"] == "version unavailable":
        return False
    error = line.get("exc_info")
    return not isinstance(error, InferenceFailed) or error.__cause__ is not None


TOO_LONG = re.compile(r"queue takes (\S+) s, too long for a limit of (\S+) s")


@cache
def _settings(*, keys: bool) -> Settings:
    return Settings(
        models=Path("models"),
        state=Path("state"),
        cache=Path("cache"),
        memory_mb=1024,
        api_keys=Path("keys.yaml") if keys else None,
    )


@cache
def _key(priority: int) -> ApiKey:
    name = KEYS[priority]
    return ApiKey(name, sha256=sha256(name.encode()).hexdigest(), priority=priority)


def _rollout(draw: Random) -> str:
    """Write a random rollouts file, perhaps with a canary or a shadow."""
    model = draw.choice((STEADY, VOLATILE))
    if draw.random() < 0.3:
        return ""
    lines = [f"{model}:", "  variants:", "    stable: {version: 1, weight: 50}"]
    if draw.random() < 0.7:
        lines.append(f"    canary: {{version: {draw.randint(1, 3)}, weight: 50}}")
    lines.append("  baseline: stable")
    if draw.random() < 0.5:
        lines.append(f"  shadow: {{version: {draw.randint(2, 3)}, sample: 1.0}}")
    return "\n".join(lines)


_STATUSES: dict[int, Callable[[World, Asked, dict[str, Any]], str]] = {
    200: World._ok,
    400: World._failed,
    404: World._not_ready,
    429: World._overloaded,
    500: World._failed,
    503: World._not_ready,
    504: World._too_late,
}
