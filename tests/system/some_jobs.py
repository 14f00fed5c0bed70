"""Jobs that answer, fail, crash, print and never end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from cohort.system.job_child import report

_done = 0


def echo(value: object) -> object:
    """Return the argument, print, and report how often the function was called in this process."""
    global _done  # noqa: PLW0603 - it is of the process
    _done += 1
    sys.stdout.write('{"answer": "printed"}\n')
    os.write(1, b"written\n")
    sys.stderr.write("complained\n")
    report(_done)
    return value


def long(length: int) -> str:
    """Answer, and print as much."""
    sys.stdout.write("x" * length)
    return "y" * length


def read() -> str:
    """Read standard input, which is empty."""
    return sys.stdin.read()


def fail(kind: str) -> None:
    """Raise an exception of Python's."""
    raise {"value": ValueError("no such\nthing"), "disk": OSError(28, "full")}[kind]


def unanswerable() -> object:
    """Answer with something that JSON does not have."""
    return object()


def end_by(number: int) -> None:
    """End by a signal, after a word."""
    os.write(2, b"the last word\n")
    os.kill(os.getpid(), number)


def leave(status: int) -> None:
    """Exit."""
    sys.exit(status)


def close_answers() -> None:
    """Close every pipe, and stay."""
    os.closerange(3, 64)
    signal.pause()


def come_back_twice(value: object) -> object:
    """Answer once a copy of this process has done so, which ends then."""
    copy = os.fork()
    if copy:
        os.waitpid(copy, 0)
    return value if copy else "the copy's"


def answer_for_another() -> None:
    """Write what a later job's answer might be, and what no answer is."""
    for descriptor in range(3, 64):
        with suppress(OSError):
            os.write(descriptor, b'\n{"answer": 7}\n1 {"raised": 7}\n1 {"answer": 8}\n')


def flood() -> None:
    """Write without end where answers are written."""
    while True:
        for descriptor in range(3, 64):
            with suppress(OSError):
                os.write(descriptor, b"x" * (1 << 16))


def take(megabytes: int) -> int:
    """Take memory."""
    return len(bytes(megabytes << 20))


def spin() -> None:
    """Use the CPU indefinitely."""
    while True:
        pass


def babble() -> None:
    """Print indefinitely."""
    while True:
        os.write(2, b"x" * (1 << 16))


def wait(file: str, holds_lock: bool) -> None:
    """Write the ids of this process and of a child process to a file, report, and wait."""
    started = subprocess.Popen(["sleep", "3600"])
    Path(file).write_text(f"{os.getpid()} {started.pid} ")
    report(0.1)
    (ctypes.PyDLL if holds_lock else ctypes.CDLL)(None).pause()


def start_apart(file: str) -> None:
    """Start a process in a separate session, write its id to a file, and wait."""
    started = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    Path(file).write_text(f"{started.pid} ")
    signal.pause()


def deep(levels: int) -> object:
    """Answer with lists in one another."""
    answer: object = None
    for _ in range(levels):
        answer = [answer]
    return answer


def crash_beside(file: str) -> None:
    """Fork a process, which holds the pipes, write its id to a file, and crash."""
    pid = os.fork()
    if not pid:
        signal.pause()
    Path(file).write_text(f"{pid} ")
    os.kill(os.getpid(), signal.SIGSEGV)


def niceness() -> tuple[int, str]:
    """Say the niceness, and why a file cannot be written."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        Path("/proc/self/cwd/file").write_text("content")
    except OSError as error:
        return os.nice(0), error.strerror or ""
    return os.nice(0), ""
