"""The parent of several workers: accepts connections for them, and replaces them.

It does not serve requests and imports no serving code. So it is small, no model can block it, and
it continues while workers of another release take over.
"""

from __future__ import annotations

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
from itertools import chain
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from cohort.connections.listeners import port_of
from cohort.workers.doors import Doors
from cohort.workers.log_lines import LineLevel, write_line
from cohort.workers.membership import LATE_SECONDS
from cohort.workers.passing import Kind
from cohort.workers.roster import FIRST_ALONE_SECONDS, RetireWorker, next_changes, retry_seconds
from cohort.workers.spreading import choose_worker
from cohort.workers.switchboard import Switchboard
from cohort.workers.systemd import Systemd
from cohort.workers.worker_process import WorkerOptions, WorkerProcess

if TYPE_CHECKING:
    from types import FrameType

IDLE_WAIT_SECONDS = 1.0

ENDING_SECONDS = 8.0
"""Time for a worker to end after the limit for requests in flight.

It is slightly longer than the worker's own limit.
"""

LAST_WORDS_SECONDS = 0.5
"""Time for workers to end after a second signal, until they are killed."""


class Parent:
    """Runs workers until a signal stops it.

    listeners: Receive the connections of each kind, until the notice has ended.
    options: The command and limits of workers.
    systemd: Is notified of the start, of life and of the stop; default: no notifications.
    """

    def __init__(
        self,
        listeners: Mapping[Kind, Sequence[socket.socket]],
        options: WorkerOptions,
        systemd: Systemd | None = None,
    ) -> None:
        self._port = port_of(listeners[Kind.HTTP][0])
        self._options = options
        self._systemd = systemd or Systemd()
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, WorkerProcess] = {}
        self._switchboard = Switchboard(self._workers, options.count)
        self._doors = Doors(self._selector, listeners, self._give, self._log)
        self._causes: dict[int, str] = {}  # why this parent ended workers
        self._failures: Counter[int] = Counter()  # consecutive ends before `settled`, by place
        self._not_before: dict[int, float] = {}
        self._outdated = 0.0  # workers started before are replaced
        self._warm_at = inf  # the latest end of the first start
        self._started = False  # True once a worker was started
        self._served = False  # True once a worker took connections
        self._stop_at = inf  # when the listeners close
        self._stopping = False
        self._signals: deque[int] = deque()  # those that `run` has not handled
        self._sign_at = 0.0  # when to notify systemd next
        self._status = 0

    def run(self) -> int:
        """Run until all workers have ended; return the exit status."""
        woken, waker = socket.socketpair()
        for end in (woken, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP):
            signal.signal(number, self._note_signal)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # otherwise a closing terminal's
            signal.signal(signal.SIGHUP, self._note_signal)
        self._watch(woken, lambda: woken.recv(4096))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN_SIGNALS)
        while True:
            self._handle_signals()
            self._reap()
            if self._stopping and not self._workers:
                return self._status
            if not self._stopping:
                self._change()
            self._wait()

    def _watch(self, readable: socket.socket, do: Callable[[], object]) -> None:
        self._selector.register(readable, selectors.EVENT_READ, do)

    def _wait(self) -> None:
        now = monotonic()
        dues = [self._switchboard.next_due, self._stop_at, self._doors.due, now + IDLE_WAIT_SECONDS]
        dues += [min(one.due, one.ends_by) for one in self._workers.values()]
        expected = max(now, min(dues))
        for worker in self._workers.values():
            with suppress(KeyError):  # the worker has closed its end
                self._selector.modify(worker.messages, worker.events, partial(self._hear, worker))
        for key, _ in self._selector.select(expected - now):
            if key.fileobj in self._selector.get_map():  # an earlier callback may have closed it
                key.data()
        now = monotonic()
        if now > expected + LATE_SECONDS:
            for worker in self._workers.values():
                worker.ends_by += now - expected
                if worker.due < inf:
                    worker.await_sign()
        for worker in self._workers.values():
            self._kill_late(worker, now)
        if not self._stopping and now >= self._sign_at:
            self._sign_at = now + IDLE_WAIT_SECONDS / 2
            self._systemd.notify("WATCHDOG=1")
        if now >= self._stop_at:
            self._stop_accepting()
        self._doors.tick(now)
        self._switchboard.tick(now)

    def _kill_late(self, worker: WorkerProcess, now: float) -> None:
        """Kill a worker whose sign of life, or whose end, was due before `now`."""
        if now >= worker.due:
            reason = f"no sign of life for {worker.sign_seconds:g} s"
            self._causes[worker.pid] = "hung"
        elif now >= worker.ends_by:
            reason = "it did not end in time"
        else:
            return
        self._log_worker("critical", f"{reason}: killed the worker", worker)
        worker.kill()

    # -- connections

    def _give(self, kind: Kind, connection: socket.socket) -> bool:
        """Pass a connection to the worker with the fewest; False if no worker takes it."""
        now = monotonic()
        able = {one.pid: one for one in self._workers.values() if one.takes(kind)}
        while able:
            pid = choose_worker([one.load(now) for one in able.values()])
            if pid is not None and able.pop(pid).channel.give(connection, kind):
                return True
        return False

    def _open_rpc(self) -> None:
        """Listen for gRPC once a worker serves it."""
        try:
            if self._doors.open(Kind.RPC):
                self._log("info", "listening for gRPC")
        except OSError as error:
            self._log("critical", "cannot listen for gRPC", reason=str(error))
            self._status = 1
            self._stop(signal.SIGTERM)

    def _stop_accepting(self) -> None:
        self._stop_at = inf
        self._doors.close()
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
        except OSError as error:  # out of processes or descriptors
            self._failures[place] += 1
            wait = retry_seconds(self._failures[place])
            self._not_before[place] = monotonic() + wait
            facts = {"worker": place, "reason": str(error), "again_in_seconds": wait}
            self._log("error", "cannot start a worker", **facts)
            return
        if not self._started:
            self._warm_at = monotonic() + FIRST_ALONE_SECONDS
        self._started = True
        self._workers[worker.pid] = worker
        self._watch(worker.messages, partial(self._hear, worker))
        self._watch(worker.signs, worker.hear_sign)
        self._watch(worker.channel.socket, partial(self._hear_channel, worker))

    def _retire(self, worker: WorkerProcess) -> None:
        self._log_worker("info", "worker retires", worker)
        self._causes[worker.pid] = "renewed"
        worker.send({"kind": "retire"})
        self._let_end(worker)

    def _let_end(self, worker: WorkerProcess) -> None:
        """Pass no more connections to a draining worker, and kill it if it does not end in time."""
        worker.retiring = True
        worker.channel.end()
        options = self._options
        worker.ends_by = (
            monotonic() + options.notice_seconds + options.drain_seconds + ENDING_SECONDS
        )

    def _hear(self, worker: WorkerProcess) -> None:
        try:
            for message in worker.receive():
                self._switchboard.hear(worker, message)
        except EOFError:
            self._selector.unregister(worker.messages)
            return
        except (LookupError, TypeError, ValueError) as error:  # perhaps from another release
            self._log_worker("error", "cannot read a worker's message", worker, reason=repr(error))
        worker.flush()
        if worker.member.settled:
            self._failures[worker.place] = 0
        if worker.state.get("draining") and not (self._stopping or worker.retiring):
            self._let_end(worker)  # a signal from elsewhere made it drain
        if worker.accepting and not self._served and not self._stopping:
            self._served = True
            self._doors.open(Kind.HTTP)
            self._systemd.notify("READY=1", "STATUS=serving")
        if worker.takes(Kind.RPC) and not self._stopping:
            self._open_rpc()

    def _hear_channel(self, worker: WorkerProcess) -> None:
        if not worker.channel.hear():
            self._selector.unregister(worker.channel.socket)

    def _reap(self) -> None:
        """Reap ended processes; as process 1, also those of others."""
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
        with suppress(EOFError):  # its last messages
            for message in worker.receive():
                self._switchboard.hear(worker, message)
        for end in (worker.messages, worker.signs, worker.channel.socket):
            with suppress(KeyError):
                self._selector.unregister(end)
        self._switchboard.forget(worker)
        self._doors.keep(worker.close(code))
        cause = self._causes.pop(worker.pid, "crashed")
        if self._stopping:
            if worker.accepting or code not in {-signal.SIGTERM, -signal.SIGINT}:
                self._status = self._status or (code if code >= 0 else 128 - code)
            return
        if code > 0 and not self._served:  # end like a single process; it has logged the reason
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
        self._log_worker("error", "worker ended: it is replaced", worker, by=ended, in_seconds=wait)

    # -- signals

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        """Leave the signal to `run`: now, a worker may be started that no list holds yet."""
        self._signals.append(number)

    def _handle_signals(self) -> None:
        while self._signals:
            number = self._signals.popleft()
            if number == signal.SIGTSTP:
                self._suspend()
            elif number == signal.SIGHUP:
                self._renew()
            else:
                self._stop(number)

    def _stop(self, number: int) -> None:
        """Forward a signal to stop. After the first, accept no more once the notice has ended.

        Workers that have not ended after the notice and the time to drain are killed. A second
        signal shortens this time.
        """
        now = monotonic()
        if self._stopping:
            self._status = 128 + number
            ends_by = now + LAST_WORDS_SECONDS
        else:
            self._systemd.notify("STOPPING=1")
            notice = self._options.notice_seconds if number == signal.SIGTERM else 0.0
            self._stop_at = now + notice
            ends_by = self._stop_at + self._options.drain_seconds + ENDING_SECONDS
        self._stopping = True
        for worker in self._workers.values():
            worker.ends_by = min(worker.ends_by, ends_by)
            worker.signal(number)

    def _renew(self) -> None:
        """Scan the files now, and replace all workers one after the other."""
        self._outdated = monotonic()
        for worker in self._workers.values():
            if worker.introduced:  # a starting worker reads them anyway
                worker.signal(signal.SIGHUP)

    def _suspend(self) -> None:
        """Suspend the workers and this process, as Ctrl-Z does, until this process is continued.

        Without a terminal or a shell to continue it, the kernel ignores the signal.
        """
        for worker in self._workers.values():
            worker.signal(signal.SIGSTOP)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._note_signal)
        for worker in self._workers.values():
            worker.signal(signal.SIGCONT)
            if worker.due < inf:
                worker.await_sign()

    def _log_worker(
        self, level: LineLevel, event: str, worker: WorkerProcess, **facts: object
    ) -> None:
        self._log(level, event, **{"worker": worker.place, "pid": worker.pid, **facts})

    def _log(self, level: LineLevel, event: str, **facts: object) -> None:
        write_line(self._options.log_format, level, event, **facts)


def start_parent(
    listeners: Mapping[Kind, Sequence[socket.socket]], options: WorkerOptions
) -> NoReturn:
    """Replace this process by a `Parent`, to free modules that a parent does not need."""
    numbers = {kind.name: [one.fileno() for one in ones] for kind, ones in listeners.items()}
    for listener in chain.from_iterable(listeners.values()):
        listener.set_inheritable(True)
    # Signals wait until the parent handles them.
    signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN_SIGNALS)
    arguments = json.dumps({"path": sys.path, "listeners": numbers, "options": asdict(options)})
    os.execv(sys.executable, [sys.executable, "-c", _GO_ON, arguments])  # noqa: S606 - no shell


TAKEN_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}

_GO_ON = """\
import json, sys
arguments = json.loads(sys.argv[1])
sys.path[:] = arguments["path"]
from cohort.workers.parent import go_on
go_on(arguments["listeners"], arguments["options"])
"""


def go_on(listeners: Mapping[str, Sequence[int]], options: Mapping[str, Any]) -> NoReturn:
    """Continue `start_parent` in the new program."""
    command = tuple(options["command"])
    parent = Parent(
        {
            Kind[name]: [socket.socket(fileno=one) for one in ones]
            for name, ones in listeners.items()
        },
        WorkerOptions(**{**options, "command": command}),
        Systemd.of(os.environ),
    )
    raise SystemExit(parent.run())
