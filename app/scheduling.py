"""Which batch runs next, and where.

One scheduler serves all models of a process. A device has slots: how many runs are in flight on it
at once (its cores for the CPU, one or two for a GPU). Whoever's oldest request has waited longest
gets the next free slot, across all models; shadow runs only when nobody else waits.

A run that starts while nothing else runs or waits is alone: it may take the other cores as well.

Three rules keep a slow model from holding up a fast one:

- runs of at most `INLINE_SECONDS` happen right on the event loop and need no slot: handing them
  to a thread and back costs more than they do;
- one slot more than there are is open to a run at least `EXPRESS_RATIO` times shorter than every
  run in flight, so that it never waits for one of them to end;
- the threads of ordinary slots run at a lower priority than the loop and the express slot, where
  the system allows it, so that a core is given up at once when something short turns up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import NamedTuple

from app.batching import Batch, BatchDecision, Batcher
from app.session import lower_priority

INLINE_SECONDS = 0.0002
EXPRESS_RATIO = 4.0


class Head(NamedTuple):
    """One model's next run: its oldest request `arrived` then, and it should take `seconds`."""

    arrived: float
    seconds: float
    device: str
    shadow: bool


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
    device. Where no ordinary slot is free, the oldest head that is short enough takes the express
    one.
    """
    ordered = sorted(range(len(heads)), key=lambda i: (heads[i].shadow, heads[i].arrived))
    for index in ordered:
        if slots[heads[index].device].free > 0:
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
    """The slots of one device, the runs that hold them, and the threads that do them."""

    def __init__(self, slots: int, executed: Callable[[Batch], None]) -> None:
        self.slots = slots
        self.running: dict[Batch, bool] = {}  # whether it holds the express slot
        self.ordinary = _Threads(slots, executed, gives_way=True)
        self.express = _Threads(1, executed, gives_way=False)

    def left(self) -> Slots:
        express = sum(self.running.values())
        expected = [batch.expected for batch in self.running]
        return Slots(self.slots - len(self.running) + express, not express, expected)

    def start(self, batch: Batch, *, express: bool) -> None:
        self.running[batch] = express
        (self.express if express else self.ordinary).put(batch)

    def close(self) -> None:
        self.ordinary.close()
        self.express.close()


class Scheduler:
    """BatchDecision batches from the batchers that have work and run them, on the loop or on
    threads.

    Everything but the runs happens on the event loop. `slots` maps a device to how many runs it
    takes at once; a device that is not named has `default_slots`.
    """

    def __init__(self, slots: Mapping[str, int] | None = None, *, default_slots: int = 2) -> None:
        self._devices = {
            name: _Device(count, self._executed) for name, count in (slots or {}).items()
        }
        self._default_slots = default_slots
        self._work: dict[Batcher, None] = {}  # batchers with requests, in the order they woke
        self._ticking = False
        self._gathering: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first who wakes it
        self._in_flight: dict[Batch, tuple[Batcher, _Device]] = {}
        self._done: deque[Batch] = deque()
        self._collecting = False

    def wake(self, batcher: Batcher) -> None:
        """Look at `batcher` in the next turn of the loop: all parsed in this one runs together."""
        self._work[batcher] = None
        if not self._ticking:
            self._tick_soon()

    def gather(self, collect: Callable[[], None]) -> None:
        """Call `collect` before the next look at the batchers: what it submits runs then."""
        self._gathering.append(collect)
        if not self._ticking:
            self._tick_soon()

    def close(self) -> None:
        """End the threads after the runs in flight."""
        for device in self._devices.values():
            device.close()
        if self._timer is not None:
            self._timer.cancel()

    # -- dispatch

    def _tick_soon(self) -> None:
        self._ticking = True
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        gathering, self._gathering = self._gathering, []
        try:
            for collect in gathering:
                collect()
        finally:
            self._ticking = False
            self._dispatch(monotonic())

    def _dispatch(self, now: float) -> None:
        inline = self._fill_slots(now)
        if len(inline) > 1:
            inline.sort(key=lambda one: one[0].shadow)
        for place, (batcher, cut) in enumerate(inline):
            # A shadow waits while others do; each of them gives rise to a later look.
            if not batcher.shadow or all(other.shadow for other in self._work):
                # What those before were answered may have changed who waits here.
                self._run_inline(batcher, batcher.next_batch(now) if place else cut)

    def _fill_slots(self, now: float) -> list[tuple[Batcher, BatchDecision]]:
        """Start what may on threads; return the batchers whose next run belongs on the loop."""
        inline: list[tuple[Batcher, BatchDecision]] = []
        ready: list[tuple[Batcher, BatchDecision]] = []
        heads: list[Head] = []
        wait = float("inf")
        to_look_at = list(self._work)
        while to_look_at:
            for batcher in to_look_at:
                cut = batcher.next_batch(now)
                if isinstance(cut, float):
                    wait = min(wait, cut)
                    if not batcher.waiting:
                        del self._work[batcher]
                elif (seconds := batcher.seconds_for(cut.work)) <= INLINE_SECONDS and (
                    batcher.device == "cpu"
                ):
                    inline.append((batcher, cut))
                else:
                    ready.append((batcher, cut))
                    heads.append(Head(cut.arrived, seconds, batcher.device, batcher.shadow))
            if not ready:
                break
            slots = {head.device: self._device(head.device).left() for head in heads}
            choice = next_run(heads, slots)
            if choice is None:
                break
            batcher, cut = ready.pop(choice.head)
            device = self._device(heads.pop(choice.head).device)
            batch = batcher.take(cut, now)
            batch.exclusive = not (device.running or ready or batcher.waiting)
            self._in_flight[batch] = (batcher, device)
            device.start(batch, express=choice.express)
            to_look_at = [batcher]
        if wait < float("inf"):
            self._look_again(now + wait)
        return inline

    def _run_inline(self, batcher: Batcher, cut: BatchDecision | float) -> None:
        """Run batches of one version for about INLINE_SECONDS; the loop reads its sockets after.

        `cut` is what the batcher says now.
        """
        now = monotonic()
        until = now + INLINE_SECONDS
        while isinstance(cut, BatchDecision) and batcher.seconds_for(cut.work) <= INLINE_SECONDS:
            batch = batcher.take(cut, now)
            batch.execute(stoppable=False)
            batcher.finish(batch)
            now = monotonic()
            if not batcher.waiting or now >= until:
                break
            cut = batcher.next_batch(now)
        if batcher.waiting:
            self.wake(batcher)
        else:
            self._work.pop(batcher, None)

    def _look_again(self, due: float) -> None:
        if due < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            wait = max(due - monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait, self._ripen)

    def _ripen(self) -> None:
        due, self._timer_due = self._timer_due, float("inf")
        # uvloop's timers count whole milliseconds and may fire early: what was due then is due now.
        self._dispatch(max(monotonic(), due + 1e-6))

    def _device(self, name: str) -> _Device:
        if name not in self._devices:
            self._devices[name] = _Device(self._default_slots, self._executed)
        return self._devices[name]

    # -- the way back from the threads: many batches, one wake-up

    def _executed(self, batch: Batch) -> None:
        self._done.append(batch)
        if not self._collecting and self._loop is not None:
            self._collecting = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits for the answer
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._collecting = False
        finished = []
        while self._done:
            batch = self._done.popleft()
            batcher, device = self._in_flight.pop(batch)
            del device.running[batch]
            finished.append((batcher, batch))
        for batcher, _ in self._fill_slots(monotonic()):  # before replies are encoded
            self.wake(batcher)
        for batcher, batch in finished:
            batcher.finish(batch)


class _Threads:
    """Threads that execute batches, started when first needed, never more than `most`."""

    def __init__(self, most: int, executed: Callable[[Batch], None], *, gives_way: bool) -> None:
        self._most = most
        self._gives_way = gives_way
        self._executed = executed
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._count = 0

    def put(self, batch: Batch) -> None:
        self._queue.put(batch)
        if self._count < self._most:
            self._count += 1
            threading.Thread(target=self._work, name="cohort-run", daemon=True).start()

    def close(self) -> None:
        for _ in range(self._count):
            self._queue.put(None)

    def _work(self) -> None:
        if self._gives_way:
            lower_priority()
        while (batch := self._queue.get()) is not None:
            batch.execute()
            self._executed(batch)
            del batch  # or it would be held until the next one comes
