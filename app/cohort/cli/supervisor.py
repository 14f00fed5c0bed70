"""A parent process that kills the server if its event loop sends no sign of life.

It replaces systemd's watchdog in containers. Docker and Compose restart a container that exited,
but not one that is unhealthy.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
from collections.abc import Iterable
from time import monotonic

from cohort.workers.log_lines import write_line
from cohort.workers.membership import LATE_SECONDS, STARTING_SECONDS, end_with

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that are forwarded to the server."""


ENDING_SECONDS = 8.0
"""Extra time to stop after the notice and drain times: a little more than the server's own."""

LAST_WORDS_SECONDS = 0.5
"""Time between a second signal and SIGKILL."""


def supervise(seconds: float, *, log_format: str, stop_seconds: float = math.inf) -> None:
    """Fork, and return in the child, which serves. The parent exits with the child's status.

    seconds: Watchdog timeout: without a sign of life for so long, the child is killed by SIGKILL,
        even if it is stopped. Before the first sign it is at least STARTING_SECONDS. Signs use
        systemd's notify protocol.
    log_format: Format of the log line about a kill, "json" or text.
    stop_seconds: Time to stop after a first signal; default: unlimited. A second signal kills the
        child after LAST_WORDS_SECONDS.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind("")  # the kernel assigns a name in the abstract namespace
    # Block signals: a fork drops signals that Python has not handled yet.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    parent, child = os.getpid(), os.fork()
    if child:
        raise SystemExit(_Supervisor(child, listener, seconds, log_format, stop_seconds).run(mask))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.environ["NOTIFY_SOCKET"] = "@" + listener.getsockname()[1:].decode()
    os.environ["WATCHDOG_USEC"] = str(int(seconds * 1e6))
    os.environ["WATCHDOG_PID"] = str(os.getpid())
    listener.close()
    os.setpgid(0, 0)  # signals to the parent's group arrive once, forwarded by the parent
    end_with(parent)


class _Supervisor:
    """Parent of the server: forwards signals, reaps processes and waits for signs of life."""

    def __init__(
        self,
        child: int,
        listener: socket.socket,
        seconds: float,
        log_format: str,
        stop_seconds: float,
    ) -> None:
        self._child, self._listener, self._seconds = child, listener, seconds
        self._log_format, self._stop_seconds = log_format, stop_seconds
        self._ends_by = float("inf")  # until a signal asks it to stop
        self._asked_to_end = False
        self._sign_seconds = max(STARTING_SECONDS, seconds)
        self._due = monotonic() + self._sign_seconds
        self._stopping = False

    def run(self, mask: Iterable[int]) -> int:
        """Return the child's exit status once it has ended. `mask`: signals to block."""
        woken, waker = socket.socketpair()
        for end in (woken, waker, self._listener):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in FORWARDED:
            signal.signal(number, self._forward)
        signal.signal(signal.SIGTSTP, self._suspend)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        while (status := self._reaped()) is None:
            wait = min(max(0.0, min(self._due, self._ends_by) - monotonic()), self._seconds)
            expected = monotonic() + wait
            for ready in select.select([self._listener, woken], [], [], wait)[0]:
                self._hear(ready.recv(4096)) if ready is self._listener else ready.recv(4096)
            now = monotonic()
            if now > expected + LATE_SECONDS:
                self._ends_by += now - expected
                self._due = max(self._due, now + self._sign_seconds)
            elif now >= self._due:
                self._kill(f"no sign of life for {self._sign_seconds:g} s")
            elif now >= self._ends_by:
                self._kill("did not stop in time")
        return status

    def _forward(self, number: int, _: object) -> None:
        if number != signal.SIGHUP:
            again, self._asked_to_end = self._asked_to_end, True
            seconds = LAST_WORDS_SECONDS if again else self._stop_seconds + ENDING_SECONDS
            self._ends_by = monotonic() + seconds
        os.kill(self._child, number)

    def _suspend(self, number: int, _: object) -> None:
        """Stop the child and this process, as for Ctrl-Z, until SIGCONT.

        The kernel ignores the signal if no process could continue this one, as without a terminal.
        """
        os.kill(self._child, signal.SIGSTOP)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspend)
        os.kill(self._child, signal.SIGCONT)
        if self._due < float("inf"):
            self._due = monotonic() + self._sign_seconds

    def _reaped(self) -> int | None:
        """Reap ended processes, as process 1 must; return the child's status if it ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == self._child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if not pid:
                return None

    def _hear(self, message: bytes) -> None:
        lines = message.split(b"\n")
        self._stopping |= b"STOPPING=1" in lines  # after a stop request the stop timeout applies
        if self._stopping:
            self._due = float("inf")
        elif b"READY=1" in lines or b"WATCHDOG=1" in lines:
            self._sign_seconds = self._seconds
            self._due = monotonic() + self._seconds

    def _kill(self, reason: str) -> None:
        os.kill(self._child, signal.SIGKILL)
        self._due = self._ends_by = float("inf")
        write_line(self._log_format, "critical", f"{reason}: killed the server", pid=self._child)
