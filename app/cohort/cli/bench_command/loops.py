"""Requests in a closed and in an open loop.

A closed loop asks again once it is answered: a server that stalls is asked less, and its stall is
seen by as many requests as there are callers. An open loop asks when it is time to, answered or
not, and counts each wait from that moment: what a caller waits who comes by chance, without
coordinated omission (https://www.youtube.com/watch?v=lJ8ydIuPFeU).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter, process_time

MOST_IN_FLIGHT = 10_000
"""Requests of an open loop that are on their way at once; further ones are counted as not sent."""

DRAIN_SECONDS = 60.0
"""How long answers are waited for after the end; what comes later counts as a failure."""

UNANSWERED = f"no answer {DRAIN_SECONDS:g} s after the end"

Send = Callable[[int], Awaitable[str]]
"""Sends a request on one of so many connections; "" where it succeeded, else why it failed."""


@dataclass
class LoadOutcome:
    """What came of a run.

    seconds: How long it took, without the warm-up.
    answered: Answers that came in those seconds, whenever they were due: what the server did.
    latencies: Seconds of each answer to what was due in them, those of failures left out.
    late: By how many seconds this client began each of those after it was due.
    drained: Seconds after the end until the last was answered.
    failures: How often each failure was.
    not_sent: Requests that were due and not sent, since too many waited.
    busy: The share of a core that this client used.
    stopped: Whether it was ended before its time, as Ctrl-C does.
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
    """Counts what happens after the warm-up, until the end."""

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
        """Let it end now; False during the warm-up, when there is nothing to report."""
        self.ends = min(self.ends, perf_counter())
        self.outcome.stopped = True
        return self.ends > self.begins

    def end(self) -> None:
        """The seconds are over; what is on its way is still waited for."""
        self.outcome.seconds = self.ends - self.begins
        took = max(perf_counter() - self.begins, 1e-9)
        self.outcome.busy = (process_time() - self._used) / took

    def close(self) -> LoadOutcome:
        self.outcome.drained = max(0.0, perf_counter() - self.ends)
        return self.outcome


async def closed_loop(send: Send, *, callers: int, seconds: float, warm_up: float) -> LoadOutcome:
    """Have so many callers ask, each again once it is answered, until it is cancelled or over."""
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
    """Ask so often in a second, at moments that are drawn as chance callers come (Poisson).

    It ends when its time is over, or when it is cancelled.
    """
    clock = _Clock(warm_up, seconds)
    drawn = random.Random(seed)  # noqa: S311 - moments, no secrets
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
                await asyncio.sleep(0)  # what is answered is to be read, also behind schedule
            number += 1
            if len(waiting) >= MOST_IN_FLIGHT:
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
