"""The scheduler: takes the batches of all models and runs them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic

from cohort.scheduling.choice import (
    EXPRESS_RATIO,
    Choice,
    QueueHead,
    Slots,
    next_run,
    seconds_to_express,
)
from cohort.scheduling.devices import Device
from cohort.scheduling.faults import Fault
from cohort.scheduling.ports import Decision, Run, RunQueue

INLINE_SECONDS = 0.0002
"""Runs that are expected to take at most this long execute on the event loop.

Consecutive runs take together at most this long, or as long as the loop spent on sockets, up to
MAX_READING_SECONDS. Otherwise, with many callers, the loop would read and refuse requests most of
the time, and run few.
"""

MAX_READING_SECONDS = 0.01
"""Maximum time of consecutive runs on the event loop, while sockets wait."""


class Scheduler:
    """Takes batches from the batchers that have requests and runs them, on the loop or on threads.

    Everything except the runs on threads happens on the event loop.

    slots: The number of slots by device; default: each device has `default_slots`.
    default_slots: The number of slots of a device that `slots` does not name; default 2.

    started: The number of runs started on threads so far, on all devices.
    """

    def __init__(self, slots: Mapping[str, int] | None = None, *, default_slots: int = 2) -> None:
        self._devices = {
            name: Device(name, count, self._on_executed) for name, count in (slots or {}).items()
        }
        self._default_slots = default_slots
        self.started = 0
        self._work: dict[RunQueue, None] = {}  # batchers with requests, in the order of `wake`
        self._dispatch_scheduled = False
        self._collectors: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")
        self._interrupted = 0.0  # when runs on the loop yielded to sockets, or 0
        self._loop: asyncio.AbstractEventLoop | None = None  # the running one at the first `wake`
        self._in_flight: dict[Run, tuple[RunQueue, Device]] = {}
        self._done: deque[Run] = deque()
        self._collecting = False

    def wake(self, batcher: RunQueue) -> None:
        """Dispatch `batcher` in the next event-loop iteration.

        So requests that are read in the current iteration can share a run.
        """
        self._work[batcher] = None
        if not self._dispatch_scheduled:
            self._schedule_dispatch()

    def gather(self, collect: Callable[[], None]) -> None:
        """Call `collect` in the next event-loop iteration, before batches are dispatched."""
        self._collectors.append(collect)
        if not self._dispatch_scheduled:
            self._schedule_dispatch()

    def faults(self, patience: float) -> list[Fault]:
        """Return the faults of the devices and their threads.

        patience: Seconds that an unwanted run may continue after it was asked to stop.
        """
        now = monotonic()
        return [
            fault
            for device in self._devices.values()
            for fault in device.faults(
                now, patience=patience, names=lambda batch: self._in_flight[batch][0].name
            )
        ]

    def close(self) -> None:
        """End the threads after their runs in flight, and cancel the timer."""
        for device in self._devices.values():
            device.close()
        self._clear_timer()

    # -- dispatch

    def _schedule_dispatch(self) -> None:
        self._dispatch_scheduled = True
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._collect_and_dispatch)

    def _collect_and_dispatch(self) -> None:
        collectors, self._collectors = self._collectors, []
        try:
            for collect in collectors:
                collect()
        finally:
            self._dispatch_scheduled = False
            self._dispatch(monotonic())

    def _dispatch(self, now: float) -> None:
        inline = self._fill_slots(now)
        share = INLINE_SECONDS
        if self._interrupted:
            away = min(now - self._interrupted, MAX_READING_SECONDS)
            share = max(share, away / max(len(inline), 1))
            self._interrupted = 0.0
        if len(inline) > 1:
            inline.sort(key=lambda one: one[0].shadow)
        for position, (batcher, decision) in enumerate(inline):
            # A shadow waits while other batchers have work; each of those causes a later dispatch.
            if not batcher.shadow or all(other.shadow for other in self._work):
                # The replies of earlier runs may have submitted or cancelled requests here.
                current = batcher.next_batch(now) if position else decision
                self._run_inline(batcher, current, share)

    def _fill_slots(self, now: float) -> list[tuple[RunQueue, Decision]]:
        """Start runs on free slots; return the batchers whose next run executes on the loop."""
        inline: list[tuple[RunQueue, Decision]] = []
        ready: list[tuple[RunQueue, Decision]] = []
        heads: list[QueueHead] = []
        wait = float("inf")
        pending = list(self._work)
        while pending:
            for batcher in pending:
                decision = batcher.next_batch(now)
                if isinstance(decision, float):
                    wait = min(wait, decision)
                    if not batcher.waiting:
                        del self._work[batcher]
                elif (
                    seconds := batcher.seconds_for(decision.work)
                ) <= INLINE_SECONDS and batcher.inline.allowed:
                    inline.append((batcher, decision))
                else:
                    # The time a run has taken so far is more reliable than its estimate.
                    seconds = max([seconds, *[now - one.started for one in batcher.running]])
                    sure = float("inf") if batcher.inline.unpredictable else seconds
                    ready.append((batcher, decision))
                    heads.append(
                        QueueHead(decision.place, sure, batcher.device, batcher.shadow, seconds)
                    )
            if not ready:
                break
            slots = {head.device: self._device(head.device).free_slots(now) for head in heads}
            choice = next_run(heads, slots) or _cut_to_express(ready, heads, slots)
            if choice is None:
                wait = min(wait, seconds_to_express(heads, slots))
                break
            batcher, decision = ready.pop(choice.head)
            head = heads.pop(choice.head)
            device = self._device(head.device)
            batch = batcher.take(decision, now)
            batch.exclusive = not (device.running or ready or batcher.waiting)
            self._in_flight[batch] = (batcher, device)
            self.started += 1
            device.start(
                batch, likely=head.likely, express=choice.express, overtakes=choice.overtakes
            )
            pending = [batcher]
        if wait < float("inf"):
            self._set_timer(now + wait)
        elif self._timer is not None and not self._work:
            self._clear_timer()
        return inline

    def _run_inline(self, batcher: RunQueue, decision: Decision | float, seconds: float) -> None:
        """Run batches of one batcher for about `seconds`, then return to the event loop.

        `decision` is the last result of `batcher.next_batch`.
        """
        now = monotonic()
        until = now + seconds
        while (
            not isinstance(decision, float)
            and batcher.seconds_for(decision.work) <= INLINE_SECONDS
            and batcher.inline.allowed
        ):
            batch = batcher.take(decision, now)
            if not batcher.execute_inline(batch, now):
                device = self._device(batcher.device)
                self._in_flight[batch] = (batcher, device)
                device.start(batch, likely=INLINE_SECONDS)
            now = monotonic()
            if not batcher.waiting or now >= until:
                break
            decision = batcher.next_batch(now)
        if batcher.waiting:
            self._interrupted = now
            self.wake(batcher)
        else:
            self._work.pop(batcher, None)

    def _set_timer(self, due: float) -> None:
        if due < self._timer_due:
            self._clear_timer()
            self._timer_due = due
            wait = max(due - monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait, self._on_timer)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due = None, float("inf")

    def _on_timer(self) -> None:
        due = self._timer_due
        self._clear_timer()
        # uvloop's timers have a resolution of 1 ms and may fire early.
        self._dispatch(max(monotonic(), due + 1e-6))

    def _device(self, name: str) -> Device:
        if name not in self._devices:
            self._devices[name] = Device(name, self._default_slots, self._on_executed)
        return self._devices[name]

    # -- executed batches come back from the threads: one wake-up of the loop for many

    def _on_executed(self, batch: Run) -> None:
        self._done.append(batch)
        if not self._collecting and self._loop is not None:
            self._collecting = True
            with suppress(RuntimeError):  # the loop is closed: no reply is expected
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._collecting = False
        finished = []
        while self._done:
            batch = self._done.popleft()
            batcher, device = self._in_flight.pop(batch)
            device.end(batch)
            finished.append((batcher, batch))
        for batcher, _ in self._fill_slots(monotonic()):  # before replies are written
            self.wake(batcher)
        for batcher, batch in finished:
            batcher.finish(batch)


def _cut_to_express(
    ready: list[tuple[RunQueue, Decision]], heads: list[QueueHead], slots: Mapping[str, Slots]
) -> Choice | None:
    """Cut the oldest batch that is short enough for the express slot with fewer requests.

    None if there is no such batch. A model that has a run in flight keeps its batches whole.
    """
    for index in sorted(range(len(heads)), key=lambda index: heads[index].place):
        head, (batcher, decision) = heads[index], ready[index]
        on = slots[head.device]
        if on.express and head.seconds < float("inf") and not (head.shadow or batcher.running):
            part = batcher.cut(decision, min(on.running, default=0.0) / EXPRESS_RATIO)
            if part is not None:
                seconds = batcher.seconds_for(part.work)
                ready[index] = batcher, part
                heads[index] = head._replace(seconds=seconds, likely=seconds)
                return Choice(index, express=True)
    return None
