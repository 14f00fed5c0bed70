"""Draw a model in a child process: the job `draw_one`, and the parent's side of it.

In the child, Python's readers and ONNX Runtime parse an untrusted file. Operating system limits
end the process if it takes too much.
"""

from __future__ import annotations

import gzip
import threading
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from signal import Signals

import orjson

from cohort.errors import LoadFailed
from cohort.inspection.drawing.reading import draw_model
from cohort.inspection.drawing.words import describe_shape
from cohort.session import available_memory, infer_types
from cohort.session.thread_priority import NICENESS
from cohort.system.jobs import (
    JobFailed,
    JobLimits,
    JobOutOfMemory,
    JobProcess,
    JobTimedOut,
    bare_environment,
)

CPU_SECONDS = 30
MAX_SECONDS = 60.0
"""Wall-clock limit, for files on a hung network mount."""

MEMORY = 1 << 30
"""Memory limit in bytes; if a quarter of the available memory is less, that is the limit."""


LIMITS = frozenset({Signals.SIGXCPU, Signals.SIGALRM, Signals.SIGKILL})
"""Signals that end a process over its limits; SIGKILL if the system is out of memory."""

_DRAW_ONE = "cohort.inspection.drawing.process:draw_one"


class _TookTooMuch(LoadFailed):
    pass


class DrawingProcess:
    """Draws the model at `path` in a child process. Run it once.

    providers: The known execution providers of nodes, by node name.
    """

    def __init__(self, path: Path, providers: Mapping[str, str]) -> None:
        self._job = {"path": str(path.absolute()), "providers": providers}
        self._process: JobProcess | None = None
        self._killed = threading.Event()

    def run(self) -> bytes:
        """Return the drawing as JSON compressed with gzip. Blocks. Raises LoadFailed.

        If ONNX Runtime cannot infer the types of values, only the types in the file are drawn.
        A run that exceeded its limits is not retried, because it would exceed them again.
        """
        try:
            return self._run(infer=True)
        except _TookTooMuch:
            raise
        except LoadFailed:
            return self._run(infer=False)

    def kill(self) -> None:
        """Kill the child process. Thread-safe."""
        self._killed.set()
        if self._process is not None:
            self._process.kill()

    def _run(self, *, infer: bool) -> bytes:
        if self._killed.is_set():
            raise LoadFailed("the server is stopping")
        memory = min(MEMORY, available_memory() // 4)
        limits = JobLimits(MAX_SECONDS, CPU_SECONDS, memory, confined=True, nice=NICENESS)
        try:
            process = JobProcess(_DRAW_ONE, environment=bare_environment(), cwd=Path("/"))
        except OSError as error:
            raise LoadFailed(f"no process can be started: {error.strerror or error}") from error
        with process:
            self._process = process
            if self._killed.is_set():  # kill() ran while the process was starting
                process.kill()
            try:
                drawn = process.do(_DRAW_ONE, {**self._job, "infer": infer}, limits=limits)
            except JobFailed as error:
                raise _failure(error) from None
        return b64decode(drawn)


def _failure(error: JobFailed) -> LoadFailed:
    if error.signal:
        kind = _TookTooMuch if error.signal in LIMITS else LoadFailed
        return kind(f"drawing it ended the process ({error.signal.name})")
    if isinstance(error, JobTimedOut):
        return _TookTooMuch(f"drawing it took more than {MAX_SECONDS:g} s")
    if isinstance(error, JobOutOfMemory):
        return LoadFailed("drawing it takes more memory than it may")
    return LoadFailed("its file is no longer the protobuf of a model")


def draw_one(path: str, providers: Mapping[str, str], infer: bool) -> str:
    """Return the drawing of the model at `path`: JSON, compressed with gzip, in base64.

    infer: True to let ONNX Runtime infer the types of values that the file does not declare.
    """
    types = infer_types(Path(path)) if infer else {}
    described = {
        name: datatype if shape is None else f"{datatype} {describe_shape(shape)}"
        for name, (datatype, shape) in types.items()
    }
    drawn = orjson.dumps(
        draw_model(Path(path), providers, described)._asdict(), option=orjson.OPT_NON_STR_KEYS
    )
    return b64encode(gzip.compress(drawn, 6, mtime=0)).decode()
