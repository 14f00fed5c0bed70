"""One worker as its parent holds it: its process, its sockets and its reported state."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from selectors import EVENT_READ, EVENT_WRITE
from time import monotonic
from typing import Any

from cohort.workers.framing import Message, Unpacker, pack_message
from cohort.workers.membership import environment_of
from cohort.workers.passing import Channel, Kind
from cohort.workers.roster import WorkerView
from cohort.workers.spreading import WorkerLoad

_READ_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The command and limits of workers.

    command: Starts one, as a fresh interpreter, so that the worker runs what is installed now.
    count: The number of workers.
    watchdog_seconds: Maximum time without a sign of life after the start, before a worker is
        killed; default 0: no limit.
    starting_seconds: Maximum time until the first sign of life; default 0: no limit.
    notice_seconds: Time after SIGTERM in which connections are still accepted; default 0.
    drain_seconds: Time after the notice for requests in flight; default 0.
    log_format: "json" or text, of the parent's own lines; default "json".
    """

    command: tuple[str, ...]
    count: int
    watchdog_seconds: float = 0.0
    starting_seconds: float = 0.0
    notice_seconds: float = 0.0
    drain_seconds: float = 0.0
    log_format: str = "json"


class WorkerProcess:
    """A worker.

    pid: Its process.
    place: Its number, from 0.
    started: Its start, on the monotonic clock.
    channel: Passes connections to it.
    signs: The socket for its signs of life, in systemd's protocol.
    messages: The socket of messages, both ways.
    state: Its last reported state.
    due: The latest time of its next sign of life, on the monotonic clock.
    sign_seconds: Maximum time between two signs of life; 0: no limit.
    ends_by: The time when it is killed, once it was asked to end.
    retiring: True if it was asked to end.
    introduced: True if it reads messages.
    metrics: Its last metrics that were served.
    """

    def __init__(self, options: WorkerOptions, place: int, *, first: bool, port: int) -> None:
        own, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.messages, messages = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.messages.setblocking(False)
        self.signs = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.signs.bind("")  # the kernel chooses a name in the abstract namespace
        self.signs.setblocking(False)
        environment = dict(os.environ)
        for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
            environment.pop(name, None)
        environment["NOTIFY_SOCKET"] = "@" + self.signs.getsockname()[1:].decode()
        if options.watchdog_seconds:
            environment["WATCHDOG_USEC"] = str(int(options.watchdog_seconds * 1e6))
        passed = (far.fileno(), messages.fileno())
        self._process = subprocess.Popen(  # noqa: S603 - the command that this process is
            options.command,
            env=environment_of(place, options.count, passed, environment, first=first, port=port),
            pass_fds=passed,
            process_group=0,  # a terminal's signals come once, from the parent
        )
        far.close()
        messages.close()
        self.pid = self._process.pid
        self.place = place
        self.started = monotonic()
        self.channel = Channel(own)
        self.state: Mapping[str, Any] = {}
        self.due = self.ends_by = inf
        self.stopping = False
        self.retiring = self.introduced = False
        self.metrics = ""
        self.sign_seconds = options.starting_seconds
        self._watchdog_seconds = options.watchdog_seconds
        self.await_sign()
        self._unpacker = Unpacker()
        self._unsent = bytearray()

    @property
    def member(self) -> WorkerView:
        """The worker's state, for decisions about it."""
        state = self.state
        return WorkerView(
            self.pid,
            self.place,
            self.started,
            accepting=self.accepting,
            ready=bool(state.get("ready")),
            settled=bool(state.get("settled")),
            retiring=self.retiring,
        )

    @property
    def accepting(self) -> bool:
        """True if it takes connections."""
        return bool(self.state)

    def takes(self, kind: Kind) -> bool:
        """Return True if it may receive a connection of this kind."""
        return (
            self.accepting
            and not self.retiring
            and (kind is Kind.HTTP or bool(self.state.get("rpc")))
        )

    def load(self, now: float) -> WorkerLoad:
        """Return its load at `now`, on the monotonic clock."""
        channel = self.channel
        ready = bool(self.state.get("ready"))
        waiting = channel.waiting(now)
        return WorkerLoad(self.pid, channel.connections, channel.given, waiting, ready)

    # -- messages

    def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message, as far as the socket accepts it; `flush` sends the rest."""
        self._unsent += pack_message(head, body)
        self.flush()

    def flush(self) -> None:
        """Send the rest of messages."""
        while self._unsent:
            try:
                sent = self.messages.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:  # it ends
                self._unsent.clear()
                return
            del self._unsent[:sent]

    @property
    def events(self) -> int:
        """The events to wait for on `messages`."""
        return EVENT_READ | EVENT_WRITE if self._unsent else EVENT_READ

    def receive(self) -> Iterator[Message]:
        """Yield the received messages. Raises EOFError if there will be no more."""
        try:
            data = self.messages.recv(_READ_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise EOFError
        yield from self._unpacker.feed(data)

    # -- signs of life

    def hear_sign(self) -> None:
        """Record a sign of life."""
        with suppress(BlockingIOError):
            lines = self.signs.recv(4096).split(b"\n")
            self.stopping |= b"STOPPING=1" in lines  # the sender of the stop signal also ends it
            if b"READY=1" in lines or b"WATCHDOG=1" in lines:
                self.sign_seconds = self._watchdog_seconds
                self.await_sign()

    def await_sign(self) -> None:
        """Restart the time limit for its next sign."""
        if self.stopping or not self.sign_seconds:
            self.due = inf
        else:
            self.due = monotonic() + self.sign_seconds

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it at once, even if it is suspended."""
        self.due = self.ends_by = inf
        self.signal(signal.SIGKILL)

    def close(self, status: int) -> list[tuple[Kind, socket.socket]]:
        """Close the sockets of a process that ended; return its untaken connections."""
        self._process.returncode = status  # reaped by the parent, with all others
        self.messages.close()
        self.signs.close()
        return self.channel.close()
