"""The threads on which large bodies are read and large responses written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from itertools import count
from queue import PriorityQueue
from typing import ParamSpec, TypeVar

SLOW_WORK = 64 << 20
"""Work, as bytes of JSON, from which it is slow: about a second."""

P = ParamSpec("P")
T = TypeVar("T")

_Work = Callable[[], None]


class OneThread:
    """Two executors on one thread: `later_stage` goes before `first_stage`, each in order.

    One thread, because reading JSON holds the interpreter's lock, so that two would only wait for
    each other. Later stages first, because a parsed body takes several times its size until its
    numbers are arrays: parsing all waiting bodies first would hold them all in memory at once.

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
        """Queue `work`, which raises nothing; `first` is whether it is a request's first stage."""
        self._queue.put((first, next(self._numbers), work))
        if self._started.acquire(blocking=False):
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while True:
            _, _, work = self._queue.get()
            work()
            del work  # or it would be held until the next one comes


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
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        future.set_exception(error)
        # The error knows this frame by its traceback: with the future in it, it would keep itself,
        # and all that was read of a body, until garbage is collected.
        del future
    else:
        future.set_result(result)


codec_thread = OneThread("cohort-codec")
slow_thread = OneThread("cohort-codec-slow")
"""For what takes many seconds, such as tens of megabytes of CSV: nobody's JSON waits behind it."""


def decoding(work: int) -> Executor:
    """Where a request's arrays are made that takes as long as so many bytes of JSON."""
    return (slow_thread if work > SLOW_WORK else codec_thread).later_stage
