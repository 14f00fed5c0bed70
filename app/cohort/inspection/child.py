"""The parent's end of the process that opens unknown models."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from contextlib import suppress
from dataclasses import asdict
from time import monotonic
from typing import IO, Any, cast

from cohort.inspection.job import Job
from cohort.system.children import PYTHON, child_environment

MAX_ANSWER_BYTES = 1 << 24

MAX_STDERR_BYTES = 1 << 16


class ChildEnded(Exception):
    """The child ended before it answered.

    code: Its exit status, or the number of the signal that ended it, negative.
    stderr: The last line that it wrote to its standard error; "" for none.
    """

    def __init__(self, code: int, stderr: str) -> None:
        super().__init__(code, stderr)
        self.code, self.stderr = code, stderr


class Child:
    """A process that answers jobs, one at a time. Raises OSError where none can be started."""

    def __init__(self) -> None:
        self._unread = b""
        self._stderr, writable = os.pipe()
        try:
            os.set_blocking(self._stderr, False)
            os.set_blocking(writable, False)  # what does not fit is lost, and nobody waits
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
                [*PYTHON, "-m", "cohort.inspection.process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writable,
                env=child_environment(), cwd="/", start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(self._stderr)
            raise
        finally:
            os.close(writable)
        self._stdin = cast(IO[bytes], self._process.stdin)
        self._stdout = cast(IO[bytes], self._process.stdout)

    def send(self, job: Job) -> None:
        """Send a job."""
        with suppress(BrokenPipeError):  # then there will be no answer either
            self._stdin.write(json.dumps(asdict(job)).encode() + b"\n")
            self._stdin.flush()

    def read(self, seconds: float) -> dict[str, Any]:
        """The next line of an answer. Raises ChildEnded, also where none comes in time."""
        until = monotonic() + seconds
        reading = select.poll()  # any descriptor, not only the first 1024
        reading.register(self._stdout, select.POLLIN)
        while b"\n" not in self._unread:
            if not reading.poll(max(0.0, until - monotonic()) * 1000):
                self._process.kill()
                raise ChildEnded(-signal.SIGALRM, "")
            more = os.read(self._stdout.fileno(), 1 << 16)
            self._unread += more
            if not more or len(self._unread) > MAX_ANSWER_BYTES:
                raise self._ended()
        line, _, self._unread = self._unread.partition(b"\n")
        with suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
        raise self._ended()

    def kill(self) -> None:
        """End the process at once; from any thread."""
        self._process.kill()

    def close(self) -> None:
        """End the process and free what it held here; it must not be waiting for a job's end."""
        self._process.kill()
        self._process.wait()
        for stream in (self._stdin, self._stdout):
            with suppress(OSError):
                stream.close()
        os.close(self._stderr)

    def _ended(self) -> ChildEnded:
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:  # it closed its output, or wrote what is no answer
            self._process.kill()
            self._process.wait()
            code = 1
        text = b""
        with suppress(OSError):
            text = os.read(self._stderr, MAX_STDERR_BYTES)
        lines = text.decode("utf-8", "replace").strip().splitlines()
        return ChildEnded(code, lines[-1] if lines else "")
