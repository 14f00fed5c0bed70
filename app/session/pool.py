"""Below the runs: the priority of the threads that help ONNX Runtime with one.

A thread starts at the priority of the one that starts it, and ONNX Runtime starts its own while a
session opens. So a session with several threads is opened by a thread that lowered its priority
first. A run whose helpers get no core computes their part itself: where each core has a run of its
own they cost 1 %, and next to nothing is taken from what else the process does. A lone run has the
cores that would idle: ResNet-50 is 1.7 times as fast on two, a small text encoder 1.5 times.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

NICENESS = 15
"""The runs' own threads have 10 (app/scheduling)."""


def at_lower_priority(call: Callable[[], T]) -> T:
    """Call in a thread, and so that the threads it starts run at a lower priority than others.

    Only on Linux have threads priorities of their own. Raises what `call` raises.
    """
    result: Future[T] = Future()

    def work() -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised below, where it was asked for
            result.set_exception(error)

    threading.Thread(target=work, name="cohort-open", daemon=True).start()
    return result.result()
