"""What the handshakes of all connections share: a thread, bounds on those that wait, and counts."""

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
"""Handshakes at most that were answered and wait for the caller: each holds some 50 KiB."""

MAX_WAITING = 1024
"""Handshakes at most that wait for the thread: about a second of its work."""

ENDED = getattr(select, "POLLRDHUP", 0)
"""That the other side has ended a connection; elsewhere than on Linux, only resets are told."""


class Handshaking(Protocol):
    """A connection whose handshake is not over.

    address: Whose turn its steps take.
    descriptor: That of its socket.
    """

    address: str | bytes
    descriptor: int

    def fail(self, kind: str, reason: str, /) -> None:
        """Give it up, which calls `Handshakes.end`."""


class Step(NamedTuple, Generic[Result]):
    """A step of a handshake, and its outcome."""

    descriptor: int
    work: Callable[[], Result]
    outcome: Future[Result]

    def do(self) -> None:
        """Do it, unless its caller has gone."""
        if not self.outcome.set_running_or_notify_cancel():
            return
        if has_gone(self.descriptor):
            self.outcome.set_exception(ConnectionResetError("the caller has gone"))
            return
        try:
            result = self.work()
        except BaseException as error:  # noqa: BLE001  # whoever awaits the outcome gets it
            self.outcome.set_exception(error)
            del self  # a reference cycle, by way of the traceback
        else:
            self.outcome.set_result(result)


class Handshakes:
    """Does the work of handshakes on a thread, and bounds those that wait for it or their callers.

    A handshake takes about a millisecond, and one with a long chain of certificates many: on the
    event loop they would be everybody's. The thread takes one step of each address in turn, so that
    a flood from one delays its own, and none of those who have gone. One that waits for the thread
    holds its first bytes only; for one that was answered, a caller needs one round trip, so that
    the oldest may go.

    failed: How many have failed, by kind.
    """

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self._answered: dict[Handshaking, None] = {}  # the oldest first
        self._lock = Lock()  # of the next three
        self._waiting: OrderedDict[str | bytes, OrderedDict[Handshaking, Step[Any]]]
        self._waiting = OrderedDict()
        self._count = 0  # of the steps that wait
        self._working = False  # whether the thread looks for steps
        self._thread = ThreadPoolExecutor(1, "tls-handshake")
        self._lines = LineLimit()

    def run(self, one: Handshaking, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Do a step of a handshake, on the thread.

        Raises ConnectionResetError where the caller has gone by then. Cancelled where `end` comes
        first, also because too many wait: then the newest of the address with the most fails.
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
        """The newest of the address with the most; where several have as many, of the last."""
        most: OrderedDict[Handshaking, Any] = max(reversed(self._waiting.values()), key=len)
        return next(reversed(most))

    def _work(self) -> None:
        while (step := self._take()) is not None:
            step.do()

    def _take(self) -> Step[Any] | None:
        """The oldest step of the address whose turn it is; None ends the work."""
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
        """A handshake was answered, and waits for its caller."""
        self._answered[one] = None
        if len(self._answered) > MAX_ANSWERED:
            oldest = next(iter(self._answered))
            oldest.fail("limit", "too many handshakes wait for their callers")

    def end(self, one: Handshaking) -> None:
        """A handshake is over, or its connection."""
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
        """Count a handshake that failed, and log it, with the caller's address."""
        self.failed[kind] += 1
        left_out = self._lines.take(kind, monotonic())
        if left_out is None:
            return
        more = {"left_out": str(left_out)} if left_out else {}
        at = ":".join(map(str, peer[:2])) if isinstance(peer, tuple) else str(peer)
        log.info("TLS handshake failed", kind=kind, reason=reason, peer=at, **more)

    def close(self) -> None:
        """End the thread, after the step that it is at."""
        with self._lock:
            self._waiting.clear()
            self._count = 0
        self._thread.shutdown(wait=False)


def has_gone(descriptor: int) -> bool:
    """Whether the other side of a socket has reset or ended the connection, or this one has."""
    poll = select.poll()
    poll.register(descriptor, ENDED)  # a reset, or none open, is told in any case
    return bool(poll.poll(0))
