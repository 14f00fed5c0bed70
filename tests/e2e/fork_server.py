"""A process that others are forked from: `python -m tests.e2e.fork_server LISTENER LIFETIME`.

Each connection to the socket LISTENER requests one process with four descriptors: standard input,
output and error, and a file. The file contains JSON with the module, its arguments, the working
folder and the environment, which may be longer than a message. The connection receives "started"
and the process id, then "ended" and the exit status. If it is closed before that, the process is
killed.

When the pipe LIFETIME closes, all processes are killed and this one ends.
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
from dataclasses import dataclass
from importlib import import_module
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path

from tests.e2e.fork_client import COHORT, SHARED

_RUNTIME = ("cohort.session.runtime", "onnxruntime.quantization")  # in this order

_SERVER = (
    "cohort.cli",
    "cohort.cli.runtime_check",
    "cohort.process.application",
    "cohort.process.rpc",
    "cohort.process.server",
    "cohort.rpc",
    "anyio._backends._asyncio",
    "uvicorn.lifespan.on",
    "uvloop",
    "tests.e2e.forked_workers",
    "tests.e2e.forking",
)
"""All that a server imports by the time it has answered a request of each API."""

IMPORTED: Mapping[str, Sequence[str]] = {
    COHORT: _SERVER,
    "cohort_prepare.frameworks.child": (
        *("cohort_prepare.frameworks.callables", "cohort_prepare.frameworks.sklearn_models"),
        *("joblib", "pandas", "skl2onnx", "sklearn.datasets", "sklearn.linear_model"),
        *("sklearn.pipeline", "sklearn.preprocessing"),
    ),
    "cohort_prepare.optimizing.tasks": ("cohort_prepare.optimizing", "onnxslim", *_RUNTIME),
    "cohort_prepare.overview.process": (
        *("cohort_prepare.overview.behavior", "cohort_prepare.overview.structure"),
        "onnxruntime.tools.symbolic_shape_infer",
    ),
    "cohort_prepare.quantizing.work": ("cohort_prepare.quantizing.work", "onnx_ir", *_RUNTIME),
}
"""Modules that are imported before the first fork, by the command or a job's module."""


@dataclass(eq=False)
class _Asker:
    connection: socket.socket
    pid: int = 0  # the id of the process forked for it


def fork_for_all(listener: socket.socket, lifetime: int) -> bool:
    """Fork a process for each connection; return True in each of them, False at the end."""
    askers: dict[int, _Asker] = {}  # by the descriptors of their connections
    running: dict[int, _Asker] = {}  # by the descriptors that report their processes' ends
    imported: set[str] = set()
    while True:
        ready = select.select([lifetime, *running, *askers, listener.fileno()], [], [])[0][0]
        if ready == lifetime:
            for asker in running.values():
                os.kill(asker.pid, signal.SIGKILL)
            return False
        if ready == listener.fileno():
            connection, _ = listener.accept()
            askers[connection.fileno()] = _Asker(connection)
            continue
        if ready in running:
            os.close(ready)
            asker = running.pop(ready)
            _, status = os.waitpid(asker.pid, 0)
            if askers.pop(asker.connection.fileno(), None):
                with asker.connection, suppress(OSError):
                    asker.connection.send(b"ended %d" % os.waitstatus_to_exitcode(status))
            continue
        asker = askers[ready]
        message, descriptors = _receive(asker.connection)
        if not message:
            askers.pop(ready).connection.close()
            if asker.pid:
                os.kill(asker.pid, signal.SIGKILL)
            continue
        with open(descriptors.pop(), "rb") as file:  # noqa: PTH123 - it has no path
            asked = json.load(file)
        if asked["module"] not in imported:
            _import(IMPORTED[asked["module"]])
            imported.add(asked["module"])
        asker.pid = os.fork()
        if not asker.pid:
            for descriptor in [listener.detach(), lifetime, *running]:
                os.close(descriptor)
            for other in askers.values():
                if other is not asker:
                    other.connection.close()
            _become(descriptors, **asked)
            asker.connection.send(b"started %d" % os.getpid())
            asker.connection.close()
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        running[os.pidfd_open(asker.pid)] = asker


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    try:
        message, descriptors, *_ = socket.recv_fds(connection, 64, 4)
    except ConnectionError:
        return b"", []
    return message, descriptors


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
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    _open_streams()
    shared = os.environ[SHARED]
    ours = os.environ["PYTHONPATH"].split(os.pathsep)
    theirs = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    if module != COHORT:  # the command finds its own
        sys.path[:] = [*theirs, *(path for path in sys.path if path not in ours)]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if module == COHORT:
        import_module("tests.e2e.forked_workers").fork_workers()
        import_module("tests.e2e.forking").fork_children_of_this(shared)
    sys.argv[1:] = arguments
    sys.orig_argv[1:] = ["-m", module, *arguments]  # which is how workers are started
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]


def _open_streams() -> None:
    """Write to what the descriptors are now: it may be a terminal, or have no positions."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = TextIOWrapper(
            BufferedWriter(FileIO(number, "w", closefd=False)),
            errors=getattr(sys, name).errors,
            line_buffering=number == 2 or os.isatty(number),
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end this
    listening = socket.socket(fileno=int(sys.argv[1]))
    address = Path(listening.getsockname())
    if fork_for_all(listening, int(sys.argv[2])):
        if sys.orig_argv[2] == COHORT:
            runpy.run_module(COHORT, run_name="__main__", alter_sys=True)
        else:
            import_module("cohort.system.job_child").do_jobs()
        # A child is done. To free all modules would take it 0.3 s of CPU.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    with suppress(OSError):  # another one still has its socket there
        address.unlink()
        address.parent.rmdir()
