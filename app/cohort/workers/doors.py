"""Listeners of the parent for HTTP and gRPC, and connections that wait for a worker."""

from __future__ import annotations

import errno
import selectors
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from math import inf
from time import monotonic
from typing import Protocol

from cohort.workers.log_lines import LineLevel
from cohort.workers.passing import Kind

PASS_AGAIN_SECONDS = 0.05
"""Interval of the attempts to pass connections that no worker took."""

ACCEPT_AGAIN_SECONDS = 0.1
"""Delay before accepting again after a lack of descriptors or memory."""

NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

ACCEPTED_AT_ONCE = 64

WAITING_CONNECTIONS = 2048
"""Connections that may wait to be accepted."""


class _Log(Protocol):
    def __call__(self, level: LineLevel, event: str, **facts: object) -> None: ...


class Doors:
    """Accepts connections, and passes each to a worker as soon as one takes it.

    selector: Reports listeners with a connection.
    listeners: The bound sockets of each kind. Connections are accepted once the kind is opened.
    give: Passes a connection to a worker; False if no worker takes it.
    log: Logs.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listeners: Mapping[Kind, Sequence[socket.socket]],
        give: Callable[[Kind, socket.socket], bool],
        log: _Log,
    ) -> None:
        self._selector, self._listeners, self._give, self._log = selector, listeners, give, log
        self._opened: set[Kind] = set()
        self._waiting: deque[tuple[Kind, socket.socket]] = deque()  # no worker took them
        self._accept_at = inf  # when to accept again after a lack of resources
        self._resting = False  # True until the next connection is accepted
        for listener in chain.from_iterable(listeners.values()):
            listener.setblocking(False)

    @property
    def due(self) -> float:
        """When to accept or pass connections next, on the monotonic clock; inf: not needed."""
        passes_at = monotonic() + PASS_AGAIN_SECONDS if self._waiting else inf
        return min(self._accept_at, passes_at)

    def open(self, kind: Kind) -> bool:
        """Begin to accept connections of a kind; False if it was open already. Raises OSError."""
        if kind in self._opened:
            return False
        self._opened.add(kind)
        for listener in self._listeners.get(kind, ()):
            listener.listen(WAITING_CONNECTIONS)
            self._watch(kind, listener)
        return True

    def keep(self, connections: Sequence[tuple[Kind, socket.socket]]) -> None:
        """Keep connections that a worker never took, for another one."""
        self._waiting.extend(connections)

    def tick(self, now: float) -> None:
        """Do the actions due at `now`: accept again, and pass on waiting connections."""
        if now >= self._accept_at:
            self._accept_at = inf
            for kind in self._opened:
                for listener in self._listeners.get(kind, ()):
                    with suppress(KeyError):  # already watched
                        self._watch(kind, listener)
        for _ in range(len(self._waiting)):
            self._pass(*self._waiting.popleft())

    def close(self) -> None:
        """Accept the connections in the kernel's queue, which closing would reset, and close."""
        self._accept_at = inf
        for kind, listeners in self._listeners.items():
            for listener in listeners:
                with suppress(KeyError, ValueError):  # ValueError: already closed
                    self._selector.unregister(listener)
                while kind in self._opened and self._accept_one(kind, listener):
                    pass
                listener.close()
        self._accept_at = inf
        self._opened.clear()

    def _watch(self, kind: Kind, listener: socket.socket) -> None:
        do = partial(self._accept, kind, listener)
        self._selector.register(listener, selectors.EVENT_READ, do)

    def _accept(self, kind: Kind, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if self._waiting or not self._accept_one(kind, listener):
                return

    def _accept_one(self, kind: Kind, listener: socket.socket) -> bool:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # the queue is empty, or its first client has left
            if error.errno in NOTHING_LEFT:
                self._rest(error)
            return False
        if self._resting:
            self._resting = False
            self._log("info", "accepting connections again")
        self._pass(kind, connection)
        return True

    def _rest(self, error: OSError) -> None:
        """Pause accepting: the listener stays readable, so polling it would not end."""
        for listener in chain.from_iterable(self._listeners.values()):
            with suppress(KeyError):
                self._selector.unregister(listener)
                self._accept_at = monotonic() + ACCEPT_AGAIN_SECONDS
        if not self._resting:
            self._resting = True
            facts = {"reason": str(error), "waiting": "connections wait in the kernel's queue"}
            self._log("error", "cannot accept connections", **facts)

    def _pass(self, kind: Kind, connection: socket.socket) -> None:
        if not self._give(kind, connection):
            self._waiting.append((kind, connection))
