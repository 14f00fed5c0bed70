"""The thread on which large bodies are read and large responses written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import count
from queue import PriorityQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Work = Callable[[], None]


class OneThread:
    """Two executors on one thread: what `goes_on` comes before what `begins`, else in order.

    One thread, because reading JSON holds the interpreter's lock, so that two would only wait for
    each other. In that order, because a body that was parsed takes several times its size until its
    numbers are arrays: parsing all that wait before going on with any would hold them all at once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: PriorityQueue[tuple[bool, int, _Work]] = PriorityQueue()
        self._numbers = count()
        self._started = threading.Lock()
        self.goes_on: Executor = _Lane(self, begins=False)
        self.begins: Executor = _Lane(self, begins=True)

    def put(self, work: _Work, *, begins: bool) -> None:
        self._queue.put((begins, next(self._numbers), work))
        if self._started.acquire(blocking=False):
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while True:
            _, _, work = self._queue.get()
            work()
            del work  # or it would be held until the next one comes


class _Lane(Executor):
    def __init__(self, thread: OneThread, *, begins: bool) -> None:
        self._thread = thread
        self._begins = begins

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)
            else:
                future.set_result(result)

        self._thread.put(work, begins=self._begins)
        return future


codec_thread = OneThread("cohort-codec")
