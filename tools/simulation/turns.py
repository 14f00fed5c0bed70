"""Threads that take turns on a simulated clock, and an event loop among them.

One thread runs at a time, until it waits; then the one that is due first continues, and the clock
jumps there. Nothing depends on the machine, so that a seed always gives the same run. The code
under test uses these instead of `threading`, `queue` and `time`: `in_place` puts them there.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import inf
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

CLOCK_STARTS = 1000.0
"""The clock's first second: zero stands for "never" here and there."""

STEP_SECONDS = 20e-6
"""Maximum seconds of waking up, or of one iteration of the event loop."""

YIELDS = 0.05
"""How often looking at the clock lets another thread go first, as losing the GIL would."""


class Stuck(AssertionError):
    """Every thread waits for another."""


class Turn:
    """A thread's part in the simulation.

    due: The time when it may continue; infinite while it waits to be woken.
    order: Which of those that are due at the same time goes first.
    worked: Seconds of processor time that it has used.
    """

    __slots__ = ("due", "gate", "name", "order", "worked")

    def __init__(self, name: str) -> None:
        self.name = name
        self.due = self.order = self.worked = 0.0
        self.gate = threading.Lock()
        self.gate.acquire()


class Turns:
    """The clock, and the threads that take turns. Made on the thread of the event loop."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = CLOCK_STARTS
        self.current = self._main = Turn("main")
        self._turns = [self.current]
        self._stuck = False

    @property
    def threads(self) -> list[str]:
        """The names of the threads that have not ended."""
        return [turn.name for turn in self._turns[1:]]

    def monotonic(self) -> float:
        """Return the clock. Now and then another thread goes first."""
        if self.random.random() < YIELDS:
            self.wait(self.now)
        return self.now

    def thread_time(self) -> float:
        """Return the processor time of the thread that asks."""
        return self.current.worked

    def work(self, seconds: float) -> None:
        """Use the processor; other threads continue during it."""
        self.current.worked += seconds
        self.wait(self.now + seconds)

    def wait(self, until: float = inf) -> None:
        """Let others run until then, or until `wake`."""
        me = self.current
        self._set_due(me, until)
        self._hand_over(me)

    def wake(self, turn: Turn) -> None:
        """Let a waiting thread continue."""
        if turn.due > self.now:
            self._set_due(turn, self.now + self.random.random() * STEP_SECONDS)

    def start(self, target: Callable[[], object], name: str) -> None:
        """Start a thread."""
        turn = Turn(name)
        self._set_due(turn, self.now + self.random.random() * STEP_SECONDS)
        self._turns.append(turn)

        def run() -> None:
            turn.gate.acquire()
            try:
                target()
            finally:
                self._turns.remove(turn)
                self._hand_over(None)

        _WORKERS.run(run)

    def _set_due(self, turn: Turn, due: float) -> None:
        turn.due, turn.order = due, self.random.random()

    def _hand_over(self, me: Turn | None) -> None:
        turns = self._turns
        following = turns[0]
        for turn in turns:
            if turn.due < following.due or (
                turn.due == following.due and turn.order < following.order
            ):
                following = turn
        if following.due == inf:
            self._stuck = True  # the main thread reports it
            following = self._main
        elif following.due > self.now:
            self.now = following.due
        self.current = following
        if following is not me:
            following.gate.release()
            if me is not None:
                me.gate.acquire()
        if me is self._main and self._stuck:
            raise Stuck(f"every thread waits for another: {[turn.name for turn in turns]}")


class _Workers:
    """Real threads, which are used again: starting one costs more than what it does here."""

    def __init__(self) -> None:
        self._idle: list[tuple[threading.Lock, list[Callable[[], None]]]] = []

    def run(self, task: Callable[[], None]) -> None:
        if self._idle:
            gate, box = self._idle.pop()
        else:
            gate, box = threading.Lock(), []
            gate.acquire()
            threading.Thread(target=self._work, args=(gate, box), daemon=True).start()
        box.append(task)
        gate.release()

    def _work(self, gate: threading.Lock, box: list[Callable[[], None]]) -> None:
        while True:
            gate.acquire()
            box.pop()()
            self._idle.append((gate, box))


_WORKERS = _Workers()


class Queue:
    """In place of `queue.SimpleQueue`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._items: deque[Any] = deque()
        self._waiting: deque[Turn] = deque()

    def put(self, item: object) -> None:
        """Add an item."""
        self._items.append(item)
        if self._waiting:
            self._turns.wake(self._waiting.popleft())

    def get(self) -> Any:
        """Take the first item, waiting for one."""
        while not self._items:
            self._waiting.append(self._turns.current)
            self._turns.wait()
        return self._items.popleft()


class Event:
    """In place of `threading.Event`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._set = False
        self._waiting: list[Turn] = []

    def set(self) -> None:
        """Let all waiting threads continue."""
        self._set = True
        for turn in self._waiting:
            self._turns.wake(turn)

    def is_set(self) -> bool:
        """Return True if no thread would wait."""
        return self._set

    def wait(self, timeout: float = inf) -> bool:
        """Wait until it is set, for at most `timeout` seconds; whether it is."""
        until = self._turns.now + timeout
        while not self._set and self._turns.now < until:
            self._waiting.append(self._turns.current)
            self._turns.wait(until)
            self._waiting.remove(self._turns.current)
        return self._set


class Thread:
    """In place of `threading.Thread`."""

    def __init__(
        self, turns: Turns, *, target: Callable[[], object], name: str, daemon: bool
    ) -> None:
        self._turns, self._target, self._name = turns, target, name

    def start(self) -> None:
        """Run the target, when it is its turn."""
        self._turns.start(self._target, self._name)


class Loop(asyncio.BaseEventLoop):
    """An event loop on the clock. It is its own selector: nothing comes from sockets.

    after_step: Called after each iteration, with whether there is nothing to do in the next one.
    """

    def __init__(self, turns: Turns, after_step: Callable[[bool], None]) -> None:
        super().__init__()
        self._turns = turns
        self._after_step = after_step
        self._selector = self
        self._turn = turns.current
        self._woken = False

    def time(self) -> float:
        return self._turns.now

    def select(self, timeout: float | None) -> list[Any]:
        """Let the other threads run until a timer is due or one of them has something."""
        turns = self._turns
        busy = timeout == 0 or self._woken
        self._after_step(not busy)
        if busy:
            turns.wait(turns.now + turns.random.random() * STEP_SECONDS)
        else:
            turns.wait(inf if timeout is None else turns.now + timeout)
        self._woken = False
        return []

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run on a separate thread."""
        future = self.create_future()

        def finish(result: Any, error: Exception | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def run() -> None:
            try:
                result, failure = func(*args), None
            except Exception as error:  # noqa: BLE001 - it is the caller's
                result, failure = None, error
            self.call_soon_threadsafe(finish, result, failure)

        self._turns.start(run, "executor")
        return future

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None:
        self._woken = True
        self._turns.wake(self._turn)


@contextmanager
def in_place(turns: Turns) -> Iterator[None]:
    """Let the application's modules use these threads and this clock."""
    threads = SimpleNamespace(
        Thread=lambda **kwargs: Thread(turns, **kwargs), Event=lambda: Event(turns)
    )
    instead = {
        "monotonic": turns.monotonic,
        "thread_time": turns.thread_time,
        "threading": threads,
        "SimpleQueue": lambda: Queue(turns),
    }
    places = _places()
    for module, name in places:
        setattr(module, name, instead[name])
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, _REAL[name])


_REAL: dict[str, object] = {
    "monotonic": time.monotonic,
    "thread_time": time.thread_time,
    "threading": threading,
    "SimpleQueue": queue.SimpleQueue,
}

_NOT_SIMULATED = frozenset(
    {
        *("cohort.codec.codec_thread", "cohort.process.logs", "cohort.session.thread_priority"),
        "cohort.inspection.inspector",  # a child process is not simulated
    }
)


@cache
def _places() -> list[tuple[ModuleType, str]]:
    """Where the application has the clock, threads and queues: by module and name."""
    return [
        (module, name)
        for path, module in sorted(sys.modules.items())
        if path.startswith("cohort.") and path not in _NOT_SIMULATED
        for name, real in _REAL.items()
        if getattr(module, name, None) is real
    ]
