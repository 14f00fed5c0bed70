"""One worker as its parent holds it: its process, its sockets and what it said of itself."""

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
    """How workers are run.

    command: What starts one: a fresh interpreter, so that what was installed meanwhile is what the
        worker runs.
    count: How many there are.
    watchdog_seconds: How long one may give no sign of life once it has started, before it is
        killed; default 0: for ever.
    starting_seconds: How long it may take until its first sign of life; default 0: for ever.
    notice_seconds: How long after SIGTERM connections are still accepted; default 0.
    drain_seconds: How long after that requests in flight may take; default 0.
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
    place: Which of the workers it is, from 0.
    started: When, on the monotonic clock.
    channel: By which it gets connections.
    signs: The socket on which it gives signs of life, as to systemd.
    messages: The socket of messages, both ways.
    state: What it said of itself last.
    due: When the next sign of life is due at the latest, on the monotonic clock.
    sign_seconds: How long it may take for that; 0: for ever.
    ends_by: When it is killed, once it was told to end.
    retiring: Whether it was told to end.
    introduced: Whether it listens to messages.
    metrics: The last metrics of it that were shown to anybody.
    """

    def __init__(self, options: WorkerOptions, place: int, *, first: bool, port: int) -> None:
        own, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.messages, messages = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.messages.setblocking(False)
        self.signs = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.signs.bind("")  # the kernel finds a name, in the abstract namespace
        self.signs.setblocking(False)
        told = dict(os.environ)
        for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
            told.pop(name, None)
        told["NOTIFY_SOCKET"] = "@" + self.signs.getsockname()[1:].decode()
        if options.watchdog_seconds:
            told["WATCHDOG_USEC"] = str(int(options.watchdog_seconds * 1e6))
        passed = (far.fileno(), messages.fileno())
        self._process = subprocess.Popen(  # noqa: S603 - the command that this process is
            options.command,
            env=environment_of(place, options.count, passed, told, first=first, port=port),
            pass_fds=passed,
            process_group=0,  # what a terminal sends to the group comes once, by the parent
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
        """What decides over it."""
        said = self.state
        return WorkerView(
            self.pid,
            self.place,
            self.started,
            accepting=self.accepting,
            ready=bool(said.get("ready")),
            settled=bool(said.get("settled")),
            retiring=self.retiring,
        )

    @property
    def accepting(self) -> bool:
        """Whether it takes connections."""
        return bool(self.state)

    def takes(self, kind: Kind) -> bool:
        """Whether it may be given a connection of this kind."""
        return (
            self.accepting
            and not self.retiring
            and (kind is Kind.HTTP or bool(self.state.get("rpc")))
        )

    def load(self, now: float) -> WorkerLoad:
        """How busy it is at `now`, on the monotonic clock."""
        channel = self.channel
        ready = bool(self.state.get("ready"))
        waiting = channel.waiting(now)
        return WorkerLoad(self.pid, channel.connections, channel.given, waiting, ready)

    # -- messages

    def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message, as far as the worker takes it; `flush` sends the rest."""
        self._unsent += pack_message(head, body)
        self.flush()

    def flush(self) -> None:
        """Send what was not taken yet."""
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
        """What is waited for on `messages`."""
        return EVENT_READ | EVENT_WRITE if self._unsent else EVENT_READ

    def receive(self) -> Iterator[Message]:
        """The messages that have come. Raises EOFError where there will be none any more."""
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
        """Note a sign of life."""
        with suppress(BlockingIOError):
            lines = self.signs.recv(4096).split(b"\n")
            self.stopping |= b"STOPPING=1" in lines  # who stopped it also sees to its end
            if b"READY=1" in lines or b"WATCHDOG=1" in lines:
                self.sign_seconds = self._watchdog_seconds
                self.await_sign()

    def await_sign(self) -> None:
        """Give it the whole time for its next sign."""
        if self.stopping or not self.sign_seconds:
            self.due = inf
        else:
            self.due = monotonic() + self.sign_seconds

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, also where it is stopped."""
        self.due = self.ends_by = inf
        self.signal(signal.SIGKILL)

    def close(self, status: int) -> list[tuple[Kind, socket.socket]]:
        """Close all of a process that has ended with `status`; the connections it never took."""
        self._process.returncode = status  # reaped by the parent, with all others
        self.messages.close()
        self.signs.close()
        return self.channel.close()
