"""Which batch runs next, and where.

One scheduler serves all models of a process. A device has slots: how many runs are in flight on it
at once (its cores for the CPU, one or two for a GPU). Whoever's oldest request has waited longest
gets the next free slot, across all models; shadow runs only when nobody else waits.

Three rules keep a slow model from holding up a fast one:

- runs of at most `INLINE_SECONDS` happen right on the event loop and need no slot: handing them to
  a thread and back costs more than they do;
- one slot more than there are is open to a run at least `EXPRESS_RATIO` times shorter than every run
  in flight, so that it never waits for one of them to end;
- the threads of ordinary slots run at a lower priority than the loop and the express slot, where the
  system allows it, so that a core is given up at once when something short turns up.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import NamedTuple

from app.batching import Batch, Batcher

INLINE_SECONDS = 0.0002
EXPRESS_RATIO = 4.0
NICENESS = 5


class Head(NamedTuple):
    """The front of one model's queues: `arrived` is its oldest request's, `seconds` a run's length."""

    arrived: float
    seconds: float
    device: str
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class Slots:
    """What a device has left: free ordinary slots, whether the express one is, and what runs."""

    free: int
    express: bool
    running: Collection[float] = ()


class Choice(NamedTuple):
    """Run the head at position `head`, on the express slot or an ordinary one."""

    head: int
    express: bool


def next_run(heads: Sequence[Head], slots: Mapping[str, Slots]) -> Choice | None:
    """Say which head runs next; None where none may.

    Ordinary slots go to the oldest head, shadows last and only while no other head waits for the
    device. Where no ordinary slot is free, the oldest head that is short enough takes the express one.
    """
    ordered = sorted(range(len(heads)), key=lambda i: (heads[i].shadow, heads[i].arrived))
    waiting = {heads[index].device for index in ordered if not heads[index].shadow}
    for index in ordered:
        head = heads[index]
        if head.shadow and head.device in waiting:
            continue
        if slots[head.device].free > 0:
            return Choice(index, express=False)
    for index in ordered:
        head = heads[index]
        on = slots[head.device]
        if not head.shadow and on.express and _is_short(head.seconds, on.running):
            return Choice(index, express=True)
    return None


def _is_short(seconds: float, running: Collection[float]) -> bool:
    return all(seconds * EXPRESS_RATIO <= other for other in running)


class _Device:
    """The slots of one device and the runs that hold them."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running: dict[Batch, bool] = {}  # whether it holds the express slot

    def left(self) -> Slots:
        express = sum(self.running.values())
        expected = [batch.expected for batch in self.running]
        return Slots(self.slots - len(self.running) + express, not express, expected)


class Scheduler:
    """Cut batches from the batchers that have work and run them, on the loop or on threads.

    Everything but the runs happens on the event loop. `slots` maps a device to how many runs it takes
    at once; a device that is not named has `default_slots`.
    """

    def __init__(self, slots: Mapping[str, int] | None = None, *, default_slots: int = 2) -> None:
        self._devices = {name: _Device(count) for name, count in (slots or {}).items()}
        self._default_slots = default_slots
        self._work: dict[Batcher, None] = {}  # batchers with requests, in the order they woke
        self._ticking = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that first wakes it
        self._done: deque[tuple[str, Batch]] = deque()
        self._collecting = False
        self._ordinary = _Threads("cohort-run", NICENESS, self._executed)
        self._express = _Threads("cohort-express", 0, self._executed)

    def wake(self, batcher: Batcher) -> None:
        """Look at `batcher` in the next turn of the loop: all that is parsed in this one runs together."""
        self._work[batcher] = None
        if not self._ticking:
            self._ticking = True
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._tick)

    def close(self) -> None:
        """End the threads after the runs in flight."""
        self._ordinary.close()
        self._express.close()
        if self._timer is not None:
            self._timer.cancel()

    # -- dispatch

    def _tick(self) -> None:
        self._ticking = False
        self._dispatch()

    def _dispatch(self) -> None:
        now = monotonic()
        wait = float("inf")
        threaded: list[Batcher] = []
        for batcher in list(self._work):
            if not batcher.waiting:
                del self._work[batcher]
            elif batcher.device == "cpu" and batcher.next_seconds <= INLINE_SECONDS:
                wait = min(wait, self._run_inline(batcher, now))
            else:
                threaded.append(batcher)
        if threaded:
            wait = min(wait, self._fill_slots(threaded, now))
        if wait < float("inf"):
            self._look_again(wait)

    def _run_inline(self, batcher: Batcher, now: float) -> float:
        batch = batcher.cut(now)
        if not isinstance(batch, Batch):
            return batch
        batch.execute()
        if batcher.waiting:
            self.wake(batcher)  # one batch a turn: the loop reads its sockets in between
        else:
            self._work.pop(batcher, None)
        batcher.finish(batch)
        return float("inf")

    def _fill_slots(self, batchers: list[Batcher], now: float) -> float:
        wait = float("inf")
        while batchers:
            heads = [
                Head(batcher.oldest, batcher.next_seconds, batcher.device, batcher.shadow)
                for batcher in batchers
            ]
            slots = {batcher.device: self._device(batcher.device).left() for batcher in batchers}
            choice = next_run(heads, slots)
            if choice is None:
                break
            batcher = batchers[choice.head]
            batch = batcher.cut(now)
            if not isinstance(batch, Batch):
                wait = min(wait, batch)
                del batchers[choice.head]
                continue
            batch.control = batcher.make_control()
            self._device(batcher.device).running[batch] = choice.express
            (self._express if choice.express else self._ordinary).run(batch)
            if not batcher.waiting:
                del self._work[batcher], batchers[choice.head]
        return wait

    def _look_again(self, wait: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait, self._dispatch)

    def _device(self, name: str) -> _Device:
        if name not in self._devices:
            self._devices[name] = _Device(self._default_slots)
        return self._devices[name]

    # -- the way back from the threads: many batches, one wake-up

    def _executed(self, batch: Batch) -> None:
        self._done.append((batch.batcher.device, batch))
        if not self._collecting:
            self._collecting = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits for the answer
                self._loop.call_soon_threadsafe(self._collect)  # type: ignore[union-attr]

    def _collect(self) -> None:
        self._collecting = False
        finished = []
        while self._done:
            device, batch = self._done.popleft()
            del self._device(device).running[batch]
            finished.append(batch)
        self._dispatch()  # the next batches first: replies are encoded while they run
        for batch in finished:
            batch.batcher.finish(batch)


class _Threads:
    """Threads that execute batches; as many as there were runs at once, started when first needed."""

    def __init__(self, name: str, niceness: int, executed: Callable[[Batch], None]) -> None:
        self._name = name
        self._niceness = niceness
        self._executed = executed
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._count = 0
        self._busy = 0
        self._lock = threading.Lock()

    def run(self, batch: Batch) -> None:
        with self._lock:
            self._busy += 1
            if self._busy > self._count:
                self._count += 1
                threading.Thread(
                    target=self._work, name=f"{self._name}-{self._count}", daemon=True
                ).start()
        self._queue.put(batch)

    def close(self) -> None:
        for _ in range(self._count):
            self._queue.put(None)

    def _work(self) -> None:
        if sys.platform == "linux" and self._niceness:
            # On Linux a thread has a priority of its own; lowering it needs no privilege.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while (batch := self._queue.get()) is not None:
            batch.execute()
            with self._lock:
                self._busy -= 1
            self._executed(batch)
