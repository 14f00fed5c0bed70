"""The parent of several workers: accepts connections for them, and replaces them.

It serves nothing itself and imports nothing that does: it is small, no model can hold it up, and it
stays the same while workers of another release take over.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from math import inf
from time import monotonic
from typing import Any, NoReturn

from cohort.connections.listeners import port_of
from cohort.workers.membership import LATE_SECONDS
from cohort.workers.roster import FIRST_ALONE_SECONDS, RetireWorker, next_changes, retry_seconds
from cohort.workers.saying import LineLevel, say_line
from cohort.workers.spreading import choose_worker
from cohort.workers.switchboard import Switchboard
from cohort.workers.systemd import Systemd
from cohort.workers.worker_process import WorkerOptions, WorkerProcess

IDLE_WAIT_SECONDS = 1.0

PASS_AGAIN_SECONDS = 0.05
"""When connections are passed on again that no worker took."""

ACCEPT_AGAIN_SECONDS = 0.1
"""When connections are accepted again, where there was nothing left for one."""

NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

ACCEPTED_AT_ONCE = 64


class Parent:
    """Runs workers until it is told to stop.

    listeners: Take the connections, until the notice is over.
    options: How workers are run.
    systemd: Who is told of the start, of life and of the stop; default: nobody.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        options: WorkerOptions,
        systemd: Systemd | None = None,
    ) -> None:
        for listener in listeners:
            listener.setblocking(False)
        self._port = port_of(listeners[0])
        self._listeners, self._options = listeners, options
        self._systemd = systemd or Systemd()
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, WorkerProcess] = {}
        self._switchboard = Switchboard(self._workers, options.count)
        self._waiting: deque[socket.socket] = deque()  # connections that no worker took
        self._causes: dict[int, str] = {}  # why workers ended that were ended from here
        self._failures: Counter[int] = Counter()  # before they were settled, in a row by place
        self._not_before: dict[int, float] = {}
        self._outdated = 0.0  # workers that started before are to be replaced
        self._warm_at = inf  # when the first start is over at the latest
        self._started = False  # whether a worker was ever started
        self._served = False  # whether one ever took connections
        self._accept_at = inf  # when connections are accepted again, where nothing is left for them
        self._resting = False  # whether none was accepted since
        self._closed = False  # whether the listeners are closed, or about to be
        self._stop_at = inf  # when the listener closes
        self._stopping = False
        self._sign_at = 0.0  # when systemd is to hear of this process
        self._status = 0

    def run(self) -> int:
        """Return the exit status, once all workers have ended."""
        woken, waker = socket.socketpair()
        for end in (woken, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._stop(number))
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # else from a terminal that closes
            signal.signal(signal.SIGHUP, lambda *_: self._renew())
        signal.signal(signal.SIGTSTP, lambda *_: self._suspend())
        self._watch(woken, lambda: woken.recv(4096))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN_SIGNALS)
        while True:
            self._reap()
            if self._stopping and not self._workers:
                return self._status
            if not self._stopping:
                self._change()
            self._wait()

    def _watch(self, readable: socket.socket, do: Callable[[], object]) -> None:
        self._selector.register(readable, selectors.EVENT_READ, do)

    def _watch_listeners(self) -> None:
        for listener in self._listeners:
            self._watch(listener, partial(self._accept, listener))

    def _forget_listeners(self) -> None:
        for listener in self._listeners:
            with suppress(KeyError):
                self._selector.unregister(listener)

    def _wait(self) -> None:
        now = monotonic()
        dues = [self._switchboard.next_due, self._stop_at, self._accept_at, now + IDLE_WAIT_SECONDS]
        dues += [one.due for one in self._workers.values()]
        if self._waiting:
            dues.append(now + PASS_AGAIN_SECONDS)
        expected = max(now, min(dues))
        for worker in self._workers.values():
            with suppress(KeyError):  # it has closed its end
                self._selector.modify(worker.messages, worker.events, partial(self._hear, worker))
        for key, _ in self._selector.select(expected - now):
            if key.fileobj in self._selector.get_map():  # it may have been closed by one before
                key.data()
        now = monotonic()
        if now > expected + LATE_SECONDS:
            for worker in self._workers.values():
                if worker.due < inf:
                    worker.await_sign()
        for worker in self._workers.values():
            if now >= worker.due:
                self._say(
                    "critical",
                    f"no sign of life for {self._options.watchdog_seconds:g} s: killed the worker",
                    worker,
                )
                self._causes[worker.pid] = "hung"
                worker.kill()
        if now >= self._accept_at:
            self._accept_at = inf
            self._watch_listeners()
        if not self._stopping and now >= self._sign_at:
            self._sign_at = now + IDLE_WAIT_SECONDS / 2
            self._systemd.tell("WATCHDOG=1")
        if now >= self._stop_at:
            self._stop_accepting()
        for _ in range(len(self._waiting)):
            self._pass(self._waiting.popleft())
        self._switchboard.tick(now)

    # -- connections

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if self._waiting or not self._accept_one(listener):
                return

    def _accept_one(self, listener: socket.socket) -> bool:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # the queue is empty, or its first has gone again
            if error.errno in NOTHING_LEFT:
                self._rest(error)
            return False
        if self._resting:
            self._resting = False
            self._tell("info", "connections are accepted again")
        self._pass(connection)
        return True

    def _rest(self, error: OSError) -> None:
        """Accept nothing for a moment: a listener stays readable, and asking it has no end."""
        if not self._closed:
            self._forget_listeners()
            self._accept_at = monotonic() + ACCEPT_AGAIN_SECONDS
        if not self._resting:
            self._resting = True
            facts = {"reason": str(error), "waiting": "connections wait in the kernel's queue"}
            self._tell("error", "cannot accept connections", **facts)

    def _pass(self, connection: socket.socket) -> None:
        """Give a connection to the worker that has the fewest; keep it where none takes it."""
        now = monotonic()
        able = {
            one.pid: one for one in self._workers.values() if one.accepting and not one.retiring
        }
        while able:
            pid = choose_worker([one.load(now) for one in able.values()])
            if pid is not None and able.pop(pid).channel.give(connection):
                return
        self._waiting.append(connection)

    def _stop_accepting(self) -> None:
        self._stop_at = self._accept_at = inf
        self._closed = True
        self._forget_listeners()
        for listener in self._listeners:
            while self._served and self._accept_one(listener):
                pass  # closing the listener would reset what the kernel has queued
            listener.close()
        for worker in self._workers.values():
            worker.channel.end()

    # -- workers

    def _change(self) -> None:
        """Start and retire workers."""
        now = monotonic()
        members = [one.member for one in self._workers.values()]
        if any(one.settled for one in members):
            self._warm_at = 0.0
        for change in next_changes(
            members,
            self._options.count,
            now=now,
            outdated=self._outdated,
            not_before=self._not_before,
            warm=now >= self._warm_at,
        ):
            if isinstance(change, RetireWorker):
                self._retire(self._workers[change.pid])
            else:
                self._start(change.place)

    def _start(self, place: int) -> None:
        try:
            worker = WorkerProcess(self._options, place, first=not self._started, port=self._port)
        except OSError as error:  # no process or no descriptor is left
            self._failures[place] += 1
            wait = retry_seconds(self._failures[place])
            self._not_before[place] = monotonic() + wait
            facts = {"worker": place, "reason": str(error), "again_in_seconds": wait}
            self._tell("error", "cannot start a worker", **facts)
            return
        if not self._started:
            self._warm_at = monotonic() + FIRST_ALONE_SECONDS
        self._started = True
        self._workers[worker.pid] = worker
        self._watch(worker.messages, partial(self._hear, worker))
        self._watch(worker.signs, worker.hear_sign)
        self._watch(worker.channel.socket, partial(self._hear_channel, worker))

    def _retire(self, worker: WorkerProcess) -> None:
        self._say("info", "worker retires", worker)
        self._causes[worker.pid] = "renewed"
        worker.retiring = True
        worker.send({"kind": "retire"})
        worker.channel.end()

    def _hear(self, worker: WorkerProcess) -> None:
        try:
            for message in worker.receive():
                self._switchboard.hear(worker, message)
        except EOFError:
            self._selector.unregister(worker.messages)
            return
        except (LookupError, TypeError, ValueError) as error:  # of another release, perhaps
            self._say("error", "a worker's message cannot be read", worker, reason=repr(error))
        worker.flush()
        if worker.member.settled:
            self._failures[worker.place] = 0
        if worker.state.get("draining") and not (self._stopping or worker.retiring):
            worker.retiring = True  # somebody else told it to end
            worker.channel.end()
        if worker.accepting and not self._served:
            self._served = True
            self._watch_listeners()
            self._systemd.tell("READY=1", "STATUS=serving")

    def _hear_channel(self, worker: WorkerProcess) -> None:
        if not worker.channel.hear():
            self._selector.unregister(worker.channel.socket)

    def _reap(self) -> None:
        """Reap who has ended, as process 1 has to."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if (worker := self._workers.pop(pid, None)) is not None:
                self._bury(worker, os.waitstatus_to_exitcode(status))

    def _bury(self, worker: WorkerProcess, code: int) -> None:
        with suppress(EOFError):  # what it said last
            for message in worker.receive():
                self._switchboard.hear(worker, message)
        for end in (worker.messages, worker.signs, worker.channel.socket):
            with suppress(KeyError):
                self._selector.unregister(end)
        self._switchboard.forget(worker)
        self._waiting.extend(worker.close(code))
        cause = self._causes.pop(worker.pid, "crashed")
        if self._stopping:
            if worker.accepting or code not in {-signal.SIGTERM, -signal.SIGINT}:
                self._status = self._status or (code if code >= 0 else 128 - code)
            return
        if code > 0 and not self._served:  # as one process would: the reason was said
            self._status = code
            self._stop(signal.SIGTERM)
            return
        self._switchboard.restarts[cause] += 1
        if cause == "renewed":
            return
        settled = worker.member.settled
        self._failures[worker.place] = 0 if settled else self._failures[worker.place] + 1
        wait = retry_seconds(self._failures[worker.place])
        self._not_before[worker.place] = monotonic() + wait
        ended = f"signal {-code}" if code < 0 else f"status {code}"
        self._say("error", "worker ended: it is replaced", worker, by=ended, in_seconds=wait)

    # -- signals

    def _stop(self, number: int) -> None:
        """Forward a signal to stop; by the first, accept no more once the notice is over."""
        if self._stopping:
            self._status = 128 + number
        else:
            self._systemd.tell("STOPPING=1")
            notice = self._options.notice_seconds if number == signal.SIGTERM else 0.0
            self._stop_at = monotonic() + notice
        self._stopping = True
        for worker in self._workers.values():
            worker.signal(number)

    def _renew(self) -> None:
        """Have the files looked at now, and all workers replaced one after the other."""
        self._outdated = monotonic()
        for worker in self._workers.values():
            if worker.introduced:  # who starts looks at them anyway
                worker.signal(signal.SIGHUP)

    def _suspend(self) -> None:
        """Stop the workers and this process, as Ctrl-Z asks, until this one is told to go on.

        The kernel ignores the signal where there is nobody who would, as without a terminal.
        """
        for worker in self._workers.values():
            worker.signal(signal.SIGSTOP)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, lambda *_: self._suspend())
        for worker in self._workers.values():
            worker.signal(signal.SIGCONT)
            if worker.due < inf:
                worker.await_sign()

    def _say(self, level: LineLevel, event: str, worker: WorkerProcess, **facts: object) -> None:
        self._tell(level, event, **{"worker": worker.place, "pid": worker.pid, **facts})

    def _tell(self, level: LineLevel, event: str, **facts: object) -> None:
        say_line(self._options.log_format, level, event, **facts)


def start_parent(
    listeners: Sequence[socket.socket], options: WorkerOptions, kept: Sequence[int]
) -> NoReturn:
    """Go on as a `Parent` in place of this process, which has imported more than a parent needs.

    kept: Descriptors that stay open.
    """
    descriptors = [one.fileno() for one in listeners]
    for descriptor in (*descriptors, *kept):
        os.set_inheritable(descriptor, True)
    # Until the parent takes them, signals wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN_SIGNALS)
    told = json.dumps({"path": sys.path, "listeners": descriptors, "options": asdict(options)})
    os.execv(sys.executable, [sys.executable, "-c", _GO_ON, told])  # noqa: S606 - no shell


TAKEN_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}

_GO_ON = """\
import json, sys
told = json.loads(sys.argv[1])
sys.path[:] = told["path"]
from cohort.workers.parent import go_on
go_on(told["listeners"], told["options"])
"""


def go_on(listeners: Sequence[int], options: Mapping[str, Any]) -> NoReturn:
    """What `start_parent` begins."""
    command = tuple(options["command"])
    parent = Parent(
        [socket.socket(fileno=one) for one in listeners],
        WorkerOptions(**{**options, "command": command}),
        Systemd.of(os.environ),
    )
    raise SystemExit(parent.run())
