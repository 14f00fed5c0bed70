"""Have the parent of several workers fork them, if the parent itself was forked.

A started parent replaces its program with a small one and starts each worker with a new
interpreter. The imports of that take more than a second of CPU. A parent that
`tests.e2e.fork_server` forked has imported everything and continues as it is. Each worker is a
child of it that runs the command again, with the environment, descriptors, process group and
signals of a started one.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

from cohort.cli import worker_parent
from cohort.workers import worker_process
from cohort.workers.parent import TAKEN_SIGNALS, go_on
from cohort.workers.passing import Kind
from cohort.workers.worker_process import WorkerOptions


def fork_workers() -> None:
    """Let this process fork its workers, if it becomes the parent of any."""
    vars(worker_parent)["start_parent"] = _start_parent
    vars(worker_process)["subprocess"] = SimpleNamespace(Popen=_ForkedWorker)


def _start_parent(
    listeners: Mapping[Kind, Sequence[socket.socket]], options: WorkerOptions
) -> NoReturn:
    """Continue as a parent in this process, with the descriptors that a started one would have."""
    numbers = {kind.name: [one.detach() for one in ones] for kind, ones in listeners.items()}
    _close_others({*range(3), *chain.from_iterable(numbers.values())})
    signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN_SIGNALS)
    _forget_handlers()
    go_on(numbers, asdict(options))


class _ForkedWorker:
    """The part of `subprocess.Popen` that the parent needs."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        process_group: int,
    ) -> None:
        self.returncode: int | None = None
        assert command == (sys.executable, *sys.orig_argv[1:])
        assert len([*Path("/proc/self/task").iterdir()]) == 1, (
            "a worker would lack the other threads"
        )
        self.pid = os.fork()
        if not self.pid:
            try:
                status = _run_again(env, pass_fds, process_group)
            except BaseException:  # noqa: BLE001 - whatever it is, the parent's code is not for it
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _run_again(env: Mapping[str, str], pass_fds: Sequence[int], process_group: int) -> int:
    """Run the command in this new process; return its exit status."""
    os.setpgid(0, process_group)
    _forget_handlers()
    _close_others({*range(3), *pass_fds})
    os.environ.clear()
    os.environ.update(env)
    status: object = 0
    try:
        runpy.run_module(sys.orig_argv[2], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if status is None or isinstance(status, int):
        return status or 0
    sys.stderr.write(f"{status}\n")
    return 1


def _forget_handlers() -> None:
    """Have signals do what they do in a new program: ignored ones stay ignored."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _close_others(kept: set[int]) -> None:
    """Close all descriptors but those kept; what has them is never used again."""
    for one in [*Path("/proc/self/fd").iterdir()]:
        if int(one.name) not in kept:
            with suppress(OSError):  # the one that listed them
                os.close(int(one.name))
