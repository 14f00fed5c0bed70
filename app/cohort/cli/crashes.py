"""Run a command in a child process, so that a crash of a library ends with a message."""

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


def go_on_in_child(report: Callable[[str], None]) -> None:
    """Fork; return in the child, while this process waits for it and exits with its status.

    report: Report in this process how a signal such as SIGSEGV ended the child.

    If this process has other threads or a replaced stdout, as in tests, do not fork.
    """
    if sys.stdout is not sys.__stdout__ or threading.active_count() > 1:
        return
    _flush()
    parent = os.getpid()
    # Block signals until the handlers are set.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child:
        _wait(child, report)
    _end_with(parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)


_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _wait(child: int, report: Callable[[str], None]) -> NoReturn:
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
            report(f"the command was killed by {name} (out of memory?); nothing was written")
        else:
            code = options.PROBLEMS
            report(
                f"a library crashed on the model ({name}); nothing was written. 'cohort inspect' "
                "reads a model in a separate process"
            )
        _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # disk full, or closed
            stream.flush()


def _end_with(parent: int) -> None:
    """Have Linux send SIGTERM to this process when its parent dies."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(options.PROBLEMS)


_PR_SET_PDEATHSIG = 1
