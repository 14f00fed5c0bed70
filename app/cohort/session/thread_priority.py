"""Priority of ONNX Runtime's helper threads.

Helper threads start while a session opens, at the priority of the thread that opens it. They should
have the priority of the threads that wait for them, which `cohort.scheduling` starts at the same
niceness. Helpers of lower priority yield to other runs and delay their own. With a run on each of
two cores, helpers of the same priority cost 5 % of the throughput, of a lower one 15 to 25 %.
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

NICENESS = 10


def lower_priority() -> None:
    """Lower this thread's priority below threads without model runs. Only Linux supports this."""
    if sys.platform == "linux":
        with suppress(OSError):  # lowering it needs no privilege
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def with_low_priority(call: Callable[[], T]) -> T:
    """Call in a thread of low priority; threads that `call` starts inherit the priority.

    Raises what `call` raises.
    """
    result: Future[T] = Future()

    def work() -> None:
        lower_priority()
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised below, in the caller's thread
            result.set_exception(error)

    threading.Thread(target=work, name="cohort-open", daemon=True).start()
    return result.result()
