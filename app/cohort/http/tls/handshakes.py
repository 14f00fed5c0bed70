"""State shared by the handshakes of all connections: a thread, limits and counts."""

from __future__ import annotations

import asyncio
import select
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from time import monotonic
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from cohort.observability.refusals import LineLimit

log = structlog.get_logger("cohort.tls")

Result = TypeVar("Result")

MAX_ANSWERED = 1024
"""Maximum number of answered handshakes that wait for the client. Each holds about 50 KiB."""

MAX_WAITING = 1024
"""Maximum number of handshakes that wait for the thread, about a second of its work."""

ENDED = getattr(select, "POLLRDHUP", 0)
"""Poll event of a connection that the client has ended. Only Linux has it; others report resets."""


class Handshaking(Protocol):
    """A connection during its handshake.

    address: Its steps take turns with those of other addresses.
    descriptor: The file descriptor of its socket.
    """

    address: str | bytes
    descriptor: int

    def fail(self, kind: str, reason: str, /) -> None:
        """Fail the handshake. Calls `Handshakes.end`."""


class Step(NamedTuple, Generic[Result]):
    """A step of a handshake and its outcome."""

    descriptor: int
    work: Callable[[], Result]
    outcome: Future[Result]

    def do(self) -> None:
        """Run the step, unless the client has disconnected."""
        if not self.outcome.set_running_or_notify_cancel():
            return
        if has_gone(self.descriptor):
            self.outcome.set_exception(ConnectionResetError("the client disconnected"))
            return
        try:
            result = self.work()
        except BaseException as error:  # noqa: BLE001  # passed to the code that awaits it
            self.outcome.set_exception(error)
            del self  # breaks a reference cycle through the traceback
        else:
            self.outcome.set_result(result)


class Handshakes:
    """Runs handshakes on a thread, and limits those that wait for the thread or the client.

    A handshake takes about 1 ms, or many with a long certificate chain. On the event loop that
    would delay all requests. The thread runs one step of each address in turn, so a flood from one
    address delays only that address. Steps of disconnected clients are skipped. A handshake that
    waits for the thread holds only its first bytes. One that was answered needs one round trip, so
    the oldest are closed first.

    failed: Failed handshakes by kind.
    """

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self._answered: dict[Handshaking, None] = {}  # oldest first
        self._lock = Lock()  # guards the next three
        self._waiting: OrderedDict[str | bytes, OrderedDict[Handshaking, Step[Any]]]
        self._waiting = OrderedDict()
        self._count = 0  # number of waiting steps
        self._working = False  # True while the thread takes steps
        self._thread = ThreadPoolExecutor(1, "tls-handshake")
        self._lines = LineLimit()

    def run(self, one: Handshaking, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run a step of a handshake on the thread.

        Raises ConnectionResetError if the client disconnects before it. The step is cancelled by
        `end`. If too many steps wait, the newest of the address with the most is ended.
        """
        self._answered.pop(one, None)
        step = Step[Result](one.descriptor, work, Future())
        excess = None
        with self._lock:
            self._waiting.setdefault(one.address, OrderedDict())[one] = step
            self._count += 1
            if self._count > MAX_WAITING:
                excess = self._newest_of_most()
            if not self._working:
                self._thread.submit(self._work)
                self._working = True
        if excess is not None:
            excess.fail("limit", "too many handshakes wait for the server")
        return asyncio.wrap_future(step.outcome)

    def _newest_of_most(self) -> Handshaking:
        """Return the newest handshake of the address with the most; of equals, the last address."""
        most: OrderedDict[Handshaking, Any] = max(reversed(self._waiting.values()), key=len)
        return next(reversed(most))

    def _work(self) -> None:
        while (step := self._take()) is not None:
            step.do()

    def _take(self) -> Step[Any] | None:
        """Return the oldest step of the next address, or None to end the work."""
        with self._lock:
            if not self._waiting:
                self._working = False
                return None
            address, steps = self._waiting.popitem(last=False)
            _, step = steps.popitem(last=False)
            if steps:
                self._waiting[address] = steps
            self._count -= 1
            return step

    def wait(self, one: Handshaking) -> None:
        """Add a handshake that was answered and waits for its client."""
        self._answered[one] = None
        if len(self._answered) > MAX_ANSWERED:
            oldest = next(iter(self._answered))
            oldest.fail("limit", "too many handshakes wait for their callers")

    def end(self, one: Handshaking) -> None:
        """Remove a handshake that finished or lost its connection."""
        self._answered.pop(one, None)
        with self._lock:
            steps = self._waiting.get(one.address)
            if steps is None or one not in steps:
                return
            step = steps.pop(one)
            self._count -= 1
            if not steps:
                del self._waiting[one.address]
        step.outcome.cancel()

    def note_failure(self, kind: str, reason: str, peer: object) -> None:
        """Count and log a failed handshake, with the client's address."""
        self.failed[kind] += 1
        left_out = self._lines.take(kind, monotonic())
        if left_out is None:
            return
        more = {"left_out": str(left_out)} if left_out else {}
        at = ":".join(map(str, peer[:2])) if isinstance(peer, tuple) else str(peer)
        log.info("TLS handshake failed", kind=kind, reason=reason, peer=at, **more)

    def close(self) -> None:
        """End the thread after its current step."""
        with self._lock:
            self._waiting.clear()
            self._count = 0
        self._thread.shutdown(wait=False)


def has_gone(descriptor: int) -> bool:
    """Return True if either side has ended the connection."""
    poll = select.poll()
    poll.register(descriptor, ENDED)  # resets and closed descriptors are always reported
    return bool(poll.poll(0))
