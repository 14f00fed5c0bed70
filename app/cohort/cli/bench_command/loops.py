"""Closed-loop and open-loop load generators.

In a closed loop each caller sends its next request after an answer. A server that stalls gets
fewer requests, so the stall shows in at most one request per caller.

An open loop sends requests at planned times and measures latency from those times. That avoids
coordinated omission (https://www.youtube.com/watch?v=lJ8ydIuPFeU).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter, process_time

MAX_IN_FLIGHT = 10_000
"""Concurrent requests of an open loop; further ones are counted as not sent."""

DRAIN_SECONDS = 60.0
"""Wait for answers after the end; later answers count as failures."""

UNANSWERED = f"no answer {DRAIN_SECONDS:g} s after the end"

Send = Callable[[int], Awaitable[str]]
"""Send a request on the connection of this number; return "" or the reason of a failure."""


@dataclass
class LoadOutcome:
    """Result of a load test.

    seconds: Duration without the warm-up.
    answered: Answers received in those seconds: the server's throughput.
    latencies: Seconds from the due time to the answer, of successful requests that were due then.
    late: Seconds by which this client started each request after its due time.
    drained: Seconds after the end until the last answer.
    failures: Number of failures by reason.
    not_sent: Due requests that were not sent because too many were in flight.
    busy: Share of a core that this client used.
    stopped: True if the test was stopped early, for example by Ctrl-C.
    """

    seconds: float = 0.0
    answered: int = 0
    latencies: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    drained: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    not_sent: int = 0
    busy: float = 0.0
    stopped: bool = False


class _Clock:
    """Record results between the warm-up and the end."""

    def __init__(self, warm_up: float, seconds: float) -> None:
        self.outcome = LoadOutcome()
        self.begins = perf_counter() + warm_up
        self.ends = self.begins + seconds
        self._used = process_time()

    def begin(self) -> None:
        self._used = process_time()

    def count(self, due: float, began: float, failure: str) -> None:
        now = perf_counter()
        self.outcome.answered += not failure and self.begins <= now < self.ends
        if self.begins <= due < self.ends:
            self.outcome.late.append(began - due)
            if failure:
                self.outcome.failures[failure] += 1
            else:
                self.outcome.latencies.append(now - due)

    def stop(self) -> bool:
        """End now; return False during the warm-up, when there is nothing to report."""
        self.ends = min(self.ends, perf_counter())
        self.outcome.stopped = True
        return self.ends > self.begins

    def end(self) -> None:
        """Take the times at the end. Requests in flight may still finish."""
        self.outcome.seconds = self.ends - self.begins
        took = max(perf_counter() - self.begins, 1e-9)
        self.outcome.busy = (process_time() - self._used) / took

    def close(self) -> LoadOutcome:
        self.outcome.drained = max(0.0, perf_counter() - self.ends)
        return self.outcome


async def closed_loop(send: Send, *, callers: int, seconds: float, warm_up: float) -> LoadOutcome:
    """Have `callers` clients send requests, each after its last answer, until the end.

    Cancellation ends it early.
    """
    clock = _Clock(warm_up, seconds)

    async def ask(caller: int) -> None:
        while (due := perf_counter()) < clock.ends:
            clock.count(due, due, await send(caller))

    asking = [asyncio.create_task(ask(caller)) for caller in range(callers)]
    try:
        await asyncio.sleep(warm_up)
        clock.begin()
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if not clock.stop():
            raise
    clock.end()
    await asyncio.gather(*asking)
    return clock.close()


async def open_loop(
    send: Send, *, rate: float, callers: int, seconds: float, warm_up: float, seed: int = 0
) -> LoadOutcome:
    """Send `rate` requests a second at random times (a Poisson process) until the end.

    Cancellation ends it early.
    """
    clock = _Clock(warm_up, seconds)
    drawn = random.Random(seed)  # noqa: S311 - times, not secrets
    waiting: set[asyncio.Task[None]] = set()

    async def ask(number: int, due: float) -> None:
        began = perf_counter()
        try:
            clock.count(due, began, await send(number % callers))
        except asyncio.CancelledError:
            clock.count(due, began, UNANSWERED)

    async def come() -> None:
        due, number, warm = clock.begins - warm_up, 0, False
        while (due := due + drawn.expovariate(rate)) < clock.ends:
            if not warm and due >= clock.begins:
                warm = True
                clock.begin()
            late = due - perf_counter()
            if late > 0:
                await asyncio.sleep(late)
            elif not number % 64:
                await asyncio.sleep(0)  # let answers be read even if behind schedule
            number += 1
            if len(waiting) >= MAX_IN_FLIGHT:
                clock.outcome.not_sent += due >= clock.begins
                await asyncio.sleep(0)
                continue
            task = asyncio.create_task(ask(number, due))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.sleep(max(0.0, clock.ends - perf_counter()))

    try:
        await come()
    except asyncio.CancelledError:
        if not clock.stop():
            raise
    clock.end()
    if waiting:
        _, left = await asyncio.wait(waiting, timeout=DRAIN_SECONDS)
        for one in left:
            one.cancel()
        await asyncio.gather(*left)
    return clock.close()
