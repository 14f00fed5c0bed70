"""The process that `tests.e2e.forking` forks servers from: `python -m tests.e2e.fork_server FD`.

FD is a socket. Each message on it asks for one process: JSON with the arguments, the working folder
and the environment, and three descriptors: standard output, standard error, and a socket that is
sent the process id at once and the exit status at the end. When FD closes, all processes are
killed and this one ends.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

IMPORTED = (
    "app.cli",
    "app.cli.runtime_check",
    "app.main.application",
    "app.main.rpc",
    "app.main.server",
    "app.rpc",
    "anyio._backends._asyncio",
    "uvicorn.lifespan.on",
    "uvloop",
)
"""All that a server imports by the time it has answered a request of each API."""


def fork_servers(control: socket.socket) -> bool:
    """Fork a process for each message; return True in each of them, False at the end."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor that tells of its end
    while True:
        for ready in select.select([control.fileno(), *running], [], [])[0]:
            if ready in running:
                pid, ended = running.pop(ready)
                os.close(ready)
                with ended:
                    _, status = os.waitpid(pid, 0)
                    ended.send(str(os.waitstatus_to_exitcode(status)).encode())
                continue
            message, descriptors, *_ = socket.recv_fds(control, 1 << 20, 3)
            if not message:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                return False
            ended = socket.socket(fileno=descriptors.pop())
            pid = os.fork()
            if not pid:
                for descriptor in [control.detach(), ended.detach(), *running]:
                    os.close(descriptor)
                for _, other in running.values():
                    other.close()
                _become(descriptors, **json.loads(message))
                return True
            for descriptor in descriptors:
                os.close(descriptor)
            ended.send(str(pid).encode())
            running[os.pidfd_open(pid)] = (pid, ended)


def _become(
    streams: Sequence[int], *, arguments: list[str], cwd: str, env: Mapping[str, str]
) -> None:
    """Turn this forked process into the one that is asked for."""
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.unfreeze()
    sys.argv[1:] = arguments
    sys.orig_argv[1:] = ["-m", "app", *arguments]  # which is how workers are started


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(name)
    threads = [*Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, "a forked process would lack the threads of this one"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end this
    gc.freeze()  # what is imported is shared with the forked processes
    if fork_servers(socket.socket(fileno=int(sys.argv[1]))):
        from app.cli import main

        main()
