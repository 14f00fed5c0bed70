"""Threads that read large bodies and write large responses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from itertools import count
from queue import PriorityQueue
from typing import ParamSpec, TypeVar

SLOW_WORK = 64 << 20
"""Work, in bytes of JSON, that counts as slow if exceeded: about a second."""

P = ParamSpec("P")
T = TypeVar("T")

_Work = Callable[[], None]


class OneThread:
    """Two executors on one thread: `later_stage` runs before `first_stage`, each in order.

    Reading JSON holds the interpreter's lock, so two threads would only wait for each other.
    Until its numbers are arrays, a parsed body takes several times its size in memory. Later stages
    run first, so that not all waiting bodies are parsed and in memory at once.

    name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: PriorityQueue[tuple[bool, int, _Work]] = PriorityQueue()
        self._numbers = count()
        self._started = threading.Lock()
        self.later_stage: Executor = _Stage(self, first=False)
        self.first_stage: Executor = _Stage(self, first=True)

    def put(self, work: _Work, *, first: bool) -> None:
        """Queue `work`, which raises nothing; `first` is True for a request's first stage."""
        self._queue.put((first, next(self._numbers), work))
        if self._started.acquire(blocking=False):
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while True:
            _, _, work = self._queue.get()
            work()
            del work  # releases it before the next wait


class _Stage(Executor):
    def __init__(self, thread: OneThread, *, first: bool) -> None:
        self._thread = thread
        self._first = first

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._thread.put(partial(_run, future, partial(fn, *args, **kwargs)), first=self._first)
        return future


def _run(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - passed to the caller
        future.set_exception(error)
        # The error's traceback refers to this frame. A future in the frame would form a cycle that
        # keeps the error and the body's data until the garbage collector runs.
        del future
    else:
        future.set_result(result)


codec_thread = OneThread("cohort-codec")
slow_thread = OneThread("cohort-codec-slow")
"""Thread for work of many seconds, such as tens of megabytes of CSV, so that JSON need not wait."""


def decoding(work: int) -> Executor:
    """Return the executor that makes a request's arrays; `work` is its cost in bytes of JSON."""
    return (slow_thread if work > SLOW_WORK else codec_thread).later_stage
