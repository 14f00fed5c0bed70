"""The process that draws one model: `python -m cohort.inspection.drawing.process`.

It reads a job from its standard input as JSON, and writes the drawing as JSON compressed by gzip to
its standard output. Python's readers and ONNX Runtime look at a file there that somebody else
wrote; limits of the system end the process where that takes too much.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from signal import Signals

import orjson

from cohort.errors import LoadFailed
from cohort.inspection.drawing.reading import draw_model
from cohort.inspection.drawing.words import describe_shape
from cohort.session import available_memory, infer_types
from cohort.session.confinement import confine, limit_process
from cohort.system.children import PYTHON, child_environment

CPU_SECONDS = 30
MAX_SECONDS = 60.0
"""Of anything: files may come over a network that hangs."""

MEMORY = 1 << 30
"""Bytes, or a quarter of what there is."""


LIMITS = frozenset({Signals.SIGXCPU, Signals.SIGALRM, Signals.SIGKILL})
"""What ends a process that takes more than it may: SIGKILL where the system has no memory left."""


class _TookTooMuch(LoadFailed):
    pass


class DrawingProcess:
    """Draws a model at `path` in a process of its own; to be run once.

    providers: The execution provider of each of its nodes that is known, by the node's name.
    """

    def __init__(self, path: Path, providers: Mapping[str, str]) -> None:
        self._job = {"path": str(path.absolute()), "providers": providers, "infer": True}
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = threading.Event()

    def run(self) -> bytes:
        """The drawing: JSON, compressed by gzip; blocks. Raises LoadFailed.

        Where ONNX Runtime fails over the types of values, those that the file tells are drawn; not
        where it took too much, which it would again.
        """
        try:
            return self._run()
        except _TookTooMuch:
            raise
        except LoadFailed:
            self._job["infer"] = False
            return self._run()

    def kill(self) -> None:
        """End it, from any thread."""
        self._killed.set()
        if self._process is not None:
            self._process.kill()

    def _run(self) -> bytes:
        if self._killed.is_set():
            raise LoadFailed("the server is stopping")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
                [*PYTHON, "-m", "cohort.inspection.drawing.process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=child_environment(), cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise LoadFailed(f"no process can be started: {error.strerror or error}") from error
        with self._process as process:
            if self._killed.is_set():  # meanwhile
                process.kill()
            try:
                drawn, _ = process.communicate(orjson.dumps(self._job), timeout=MAX_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise _TookTooMuch(f"drawing it took more than {MAX_SECONDS:g} s") from None
        if process.returncode == 0:
            return drawn
        if process.returncode < 0:
            signal = Signals(-process.returncode)
            kind = _TookTooMuch if signal in LIMITS else LoadFailed
            raise kind(f"drawing it ended the process ({signal.name})")
        raise LoadFailed("its file is not the protobuf of a model any more")


def answer_one() -> bytes:
    """Do the job on standard input."""
    confine()
    job = orjson.loads(sys.stdin.buffer.read())
    limit_process(CPU_SECONDS, min(MEMORY, available_memory() // 4))
    path = Path(job["path"])
    types = infer_types(path) if job["infer"] else {}
    described = {
        name: datatype if shape is None else f"{datatype} {describe_shape(shape)}"
        for name, (datatype, shape) in types.items()
    }
    drawn = draw_model(path, job["providers"], described)
    return gzip.compress(orjson.dumps(drawn._asdict(), option=orjson.OPT_NON_STR_KEYS), 6, mtime=0)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no drawing
    answers.write(answer_one())
    answers.flush()
