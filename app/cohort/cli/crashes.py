"""A command as a child of itself, so that what a crash of a library leaves is still a sentence."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from cohort.cli import options


def go_on_in_child(tell: Callable[[str], None]) -> None:
    """Return in a child of this process, which waits for it and ends as it does.

    tell: Says in this process what it was that ended the child without a word, such as SIGSEGV.

    Where others are in this process, as in tests, it returns in the process itself.
    """
    if sys.stdout is not sys.__stdout__ or threading.active_count() > 1:
        return
    _flush()
    parent = os.getpid()
    # A signal that comes now waits until there is somebody to take it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child:
        _wait(child, tell)
    _end_with(parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)


_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _wait(child: int, tell: Callable[[str], None]) -> NoReturn:
    def pass_on(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for one in _PASSED_ON:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL:
            code = options.MISUSED
            tell(f"the command was ended by {name} (out of memory?); nothing was written")
        else:
            code = options.PROBLEMS
            tell(
                f"a library crashed on the model ({name}); nothing was written. 'cohort inspect' "
                "looks at a model in a process of its own"
            )
        _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # full, or closed
            stream.flush()


def _end_with(parent: int) -> None:
    """Have the system stop this process where its parent is killed; on Linux."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(options.PROBLEMS)


_PR_SET_PDEATHSIG = 1
