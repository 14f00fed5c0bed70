"""The process that `tests.e2e.forking` forks servers from: `python -m tests.e2e.fork_server FD`.

FD is a socket. Each message on it asks for one process by four descriptors: standard output,
standard error, a socket that is sent "started" and the process id, then "ended" and the exit
status, and a file with JSON of the module, its arguments, the working folder and the environment,
which may be longer than a message. When FD closes, all processes are killed and this one ends.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

COHORT = "app"
"""The module that is the command `cohort`."""

_RUNTIME = ("app.session.runtime", "onnxruntime.quantization")  # in this order

_SERVER = (
    "app.cli",
    "app.cli.runtime_check",
    "app.main.application",
    "app.main.rpc",
    "app.main.server",
    "app.rpc",
    "anyio._backends._asyncio",
    "uvicorn.lifespan.on",
    "uvloop",
    "tests.e2e.forked_workers",
)
"""All that a server imports by the time it has answered a request of each API."""

IMPORTED: Mapping[str, Sequence[str]] = {
    COHORT: _SERVER,
    "app.prepare.frameworks.child": (
        *("app.prepare.frameworks.callables", "app.prepare.frameworks.sklearn_models"),
        *("joblib", "pandas", "skl2onnx", "sklearn.datasets", "sklearn.linear_model"),
        *("sklearn.pipeline", "sklearn.preprocessing"),
    ),
    "app.prepare.optimizing.child": ("app.prepare.optimizing", "onnxslim", *_RUNTIME),
    "app.prepare.overview.process": (
        *("app.prepare.overview.behavior", "app.prepare.overview.structure"),
        "onnxruntime.tools.symbolic_shape_infer",
    ),
    "app.prepare.quantizing.process": ("app.prepare.quantizing.work", "onnx_ir", *_RUNTIME),
}
"""By the module that a process runs: what it imports. It happens before the first fork."""


def fork_servers(control: socket.socket) -> bool:
    """Fork a process for each message; return True in each of them, False at the end."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor that tells of its end
    imported: set[str] = set()
    while True:
        for ready in select.select([control.fileno(), *running], [], [])[0]:
            if ready in running:
                pid, ended = running.pop(ready)
                os.close(ready)
                with ended, suppress(OSError):  # a test may have dropped its process
                    _, status = os.waitpid(pid, 0)
                    ended.send(b"ended %d" % os.waitstatus_to_exitcode(status))
                continue
            message, descriptors, *_ = socket.recv_fds(control, 64, 4)
            if not message:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                return False
            with open(descriptors.pop(), "rb") as file:  # noqa: PTH123 - it has no path
                asked = json.load(file)
            ended = socket.socket(fileno=descriptors.pop())
            if asked["module"] not in imported:
                _import(IMPORTED[asked["module"]])
                imported.add(asked["module"])
            pid = os.fork()
            if not pid:
                for descriptor in [control.detach(), *running]:
                    os.close(descriptor)
                for _, other in running.values():
                    other.close()
                _become(descriptors, **asked)
                ended.send(b"started %d" % os.getpid())
                ended.close()
                return True
            for descriptor in descriptors:
                os.close(descriptor)
            running[os.pidfd_open(pid)] = (pid, ended)


def _import(names: Sequence[str]) -> None:
    for name in names:
        import_module(name)
    threads = [*Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, "a forked process would lack the threads of this one"
    gc.freeze()  # what is imported is shared with the forked processes


def _become(
    streams: Sequence[int],
    *,
    module: str,
    arguments: list[str],
    cwd: str,
    env: Mapping[str, str],
    new_session: bool,
) -> None:
    """Turn this forked process into the one that is asked for."""
    if new_session:
        os.setsid()
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    ours = os.environ["PYTHONPATH"].split(os.pathsep)
    theirs = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    if module != COHORT:  # the command finds its own
        sys.path[:] = [*theirs, *(path for path in sys.path if path not in ours)]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if module == COHORT:
        gc.unfreeze()
        import_module("tests.e2e.forked_workers").fork_workers()
    sys.argv[1:] = arguments
    sys.orig_argv[1:] = ["-m", module, *arguments]  # which is how workers are started
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end this
    if fork_servers(socket.socket(fileno=int(sys.argv[1]))):
        runpy.run_module(sys.orig_argv[2], run_name="__main__", alter_sys=True)
        # A child is done. To free all modules would take it 0.3 s of CPU.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
