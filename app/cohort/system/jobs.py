"""Jobs: functions that run in a child process, so a crash or a limit loses only the answer.

A job is a function, named by its dotted path `module:function`, with JSON arguments and a JSON
answer. The child (`cohort.system.job_child`) reads jobs from its standard input, one per line. It
writes lines to its standard output: messages of the job, and finally its answer or its exception.
Each line begins with the number of the job.
Output of the job and its libraries goes to standard error; the end of it is kept.

The child leads a process group. The whole group is killed with the job's process, and also if this
process ends for any reason. Processes that the child started in separate sessions are killed with
it. They survive if the child exited on its own, or was killed because this process ended.

JobFailed
├── JobRaised          the function raised an exception
│   └── JobOutOfMemory the system refused it memory
├── JobTimedOut        it exceeded its limit
└── JobCrashed         the process ended otherwise
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

PYTHON = (sys.executable, "-P")
"""The start of the command: Python, without the working folder in its module search path."""

MAX_ANSWER_BYTES = 1 << 26

MAX_PRINTED_BYTES = 1 << 16
"""Maximum bytes kept from the end of a job's output, which may have any length."""

LINES_SHOWN = 15
"""Maximum lines shown of a failed job's output."""

MAX_SENTENCE = 1000

_CHILD = "from cohort.system.job_child import do_jobs; do_jobs()"

_LOOK_SECONDS = 0.2
"""Interval of checks that the process is alive: its own child processes may hold its pipes open."""

_ENDING_SECONDS = 10.0
"""Time limit for the exit handlers of a process."""

_SHELL_SIGNAL = 128
"""Offset of a signal's number in the exit status of programs that pass it on, such as uv."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits of a job; by default it has no limits.

    seconds: Wall-clock time until its process is killed; None: no limit.
    cpu_seconds: CPU time until the system kills its process; 0: no limit.
    memory: Bytes in addition to the memory of the process when the job begins; 0: no limit.
    confined: True to forbid file writes and to limit open files.
    nice: The niceness of a confined process.

    All limits except `seconds` also apply to later jobs of the process, unless those set their own.
    """

    seconds: float | None = None
    cpu_seconds: int = 0
    memory: int = 0
    confined: bool = False
    nice: int = 0


class JobFailed(Exception):
    """A job returned no answer.

    printed: The end of its output.
    signal: The signal that ended its process, also if another process passed it on; None: no
        signal.
    """

    signal: signal.Signals | None = None

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed

    @property
    def last_lines(self) -> str:
        """The last few lines of its output, which usually contain the reason."""
        return "\n".join(self.printed.strip().splitlines()[-LINES_SHOWN:])

    @property
    def last_line(self) -> str:
        """The last line of its output, or ""."""
        return self.last_lines.rpartition("\n")[2]


class JobRaised(JobFailed):
    """The function raised an exception; this exception has the same message.

    kinds: The full names of the exception's class and its base classes, the closest first.
    number: The errno of an OSError, else 0.
    """

    def __init__(self, message: str, printed: str, kinds: Sequence[str], number: int = 0) -> None:
        super().__init__(message, printed)
        self.kinds, self.number = kinds, number

    def is_a(self, kind: type[BaseException]) -> bool:
        """Return True if the exception was an instance of `kind`."""
        return f"{kind.__module__}.{kind.__qualname__}" in self.kinds

    @property
    def sentence(self) -> str:
        """The name of the exception's class and its message, on one line."""
        text = " ".join(str(self).split())[:MAX_SENTENCE]
        name = self.kinds[0].rpartition(".")[2]
        return f"{name}: {text}" if text else name


class JobOutOfMemory(JobRaised):
    """The function needed more memory than its limit."""


class JobTimedOut(JobFailed):
    """The job exceeded its time limit: CPU time if `signal` is SIGXCPU, else wall-clock time."""


class JobCrashed(JobFailed):
    """The process ended before the job's answer, with an exit status or by another signal.

    A process that floods the pipe of its answers is killed.
    """


class JobProcess:
    """A child process that runs jobs, one at a time, until it is closed.

    After a job fails for any reason except an exception, the process is unusable.
    """

    def __init__(
        self,
        name: str,
        *,
        python: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start a process.

        name: The name in process lists, such as the function.
        python: The start of the command; default None: this Python.
        environment: Its variables, with PYTHONPATH; default None: this process's variables.
        cwd: Its working folder; default None: this process's folder.

        Raises OSError if it cannot be started.
        """
        self._lock = threading.Lock()
        self._closed = self._busy = False
        self._ends: float | None = None
        self._outgoing, self._unread, self._printed = memoryview(b""), bytearray(), b""
        self._lines: deque[bytes] = deque()
        self._job = 0
        self._process = subprocess.Popen(  # noqa: S603 - a Python, with a module of ours
            [*(python or PYTHON), "-c", _CHILD, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": python_path()} if environment is None else environment,
            cwd=cwd,
            start_new_session=True,
        )
        streams = self._process.stdin, self._process.stdout, self._process.stderr
        self._stdin, self._stdout, self._stderr = (one.fileno() for one in streams if one)
        self._open = {self._stdout, self._stderr}  # pipes that may have more output
        for descriptor in (self._stdin, *self._open):
            os.set_blocking(descriptor, False)
        try:
            self._watch = _end_with_this_process(self._process.pid)
        except OSError:
            self.kill()
            self._process.communicate()
            raise

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def printed(self) -> str:
        """The end of the last job's output."""
        return self._printed.decode(errors="replace")

    def do(
        self,
        function: str,
        arguments: Mapping[str, object],
        *,
        limits: JobLimits = JobLimits(),
        on_message: Callable[[Any], None] = lambda _: None,
    ) -> Any:
        """Run a job, and block until it ends.

        function: `module:function`.
        arguments: Arguments by name; values that JSON does not support are sent as text.
        on_message: Called with each message of the job (`job_child.report`). If it raises, the
            process is unusable.

        Returns the answer. Raises JobFailed.
        """
        self._job += 1
        job = {"number": self._job, "function": function, "arguments": arguments,
               "limits": asdict(limits)}  # fmt: skip
        self._outgoing = memoryview(json.dumps(job, default=str).encode() + b"\n")
        self._printed = b""
        self._busy = True
        self.allow(limits.seconds)
        ended = False
        while True:
            message = self._message()
            if "progress" in message:
                on_message(message["progress"])
            elif message:
                self._take(self._stderr)
                self._busy = False
                return _answer(message, self.printed)
            elif ended:
                raise _ended(self._process.wait(), self.printed)
            else:
                ended = self._move()

    def allow(self, seconds: float | None) -> None:
        """Set the time limit of the running job to `seconds` from now; None: no limit."""
        self._ends = None if seconds is None else monotonic() + seconds

    def kill(self) -> None:
        """Kill the process and all processes that it started. Any thread may call it."""
        with self._lock:
            if not self._closed:
                others = _descendants(self._process.pid)
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                for pid in others:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process, immediately if a job runs, and all processes that it started."""
        if self._closed:
            return
        try:
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream:
                    stream.close()
            if not self._busy:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_ENDING_SECONDS)
        finally:
            self.kill()
            with self._lock:
                self._closed = True  # the group's number may be reused
            self._process.wait()
            self._watch.kill()
            self._watch.communicate()

    def _message(self) -> Mapping[str, Any]:
        """Return the next received message of this job; {} if no message was received."""
        while self._lines:
            number, _, line = self._lines.popleft().partition(b" ")
            if number != b"%d" % self._job:  # printed text, or a process forked by an earlier job
                continue
            with suppress(ValueError):  # text printed before the child started its jobs
                try:
                    message = json.loads(line)
                except RecursionError:
                    if not line.startswith(b'{"answer": '):
                        continue
                    kinds = ["builtins.RecursionError"]
                    raise JobRaised("the answer is too deep", self.printed, kinds) from None
                if isinstance(message, dict) and _is_whole(message):
                    return message
        return {}

    def _move(self) -> bool:
        """Wait for the pipes, then send and receive. Return True if the process has ended."""
        left = _LOOK_SECONDS if self._ends is None else self._ends - monotonic()
        if left <= 0:
            self.kill()
            raise JobTimedOut("it took longer than it may", self.printed)
        ready = select.poll()  # any descriptor, not only the first 1024
        for descriptor in self._open:
            ready.register(descriptor, select.POLLIN)
        if self._outgoing:
            ready.register(self._stdin, select.POLLOUT)
        moving = [descriptor for descriptor, _ in ready.poll(min(left, _LOOK_SECONDS) * 1000)]
        ended = self._process.poll() is not None
        if self._stdin in moving:
            self._send()
        if self._stdout not in self._open:  # the output has ended
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            self.kill()
            ended = True
        for descriptor in [*self._open]:
            self._take(descriptor)
        return ended

    def _send(self) -> None:
        try:
            self._outgoing = self._outgoing[os.write(self._stdin, self._outgoing) :]
        except BrokenPipeError:  # then no answer will follow
            self._outgoing = memoryview(b"")

    def _take(self, descriptor: int) -> None:
        """Read the received bytes of a pipe, which holds at most 1 MiB at a time."""
        try:
            more = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return
        if not more:
            self._open.discard(descriptor)
        elif descriptor == self._stderr:
            self._printed = (self._printed + more)[-MAX_PRINTED_BYTES:]
        else:
            first, *others = more.split(b"\n")
            self._unread += first
            for line in others:
                self._lines.append(bytes(self._unread))
                self._unread = bytearray(line)
            if len(self._unread) > MAX_ANSWER_BYTES:
                self._unread = bytearray()  # an exception would keep it in memory
                self.kill()
                raise JobCrashed("its answer is too long", self.printed)


def run_job(
    function: str,
    arguments: Mapping[str, object],
    *,
    python: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    limits: JobLimits = JobLimits(),
    on_message: Callable[[Any], None] = lambda _: None,
) -> Any:
    """Run one job in a new process, which ends with this call: see `JobProcess`.

    Raises JobFailed, and OSError if no process can be started.
    """
    with JobProcess(function, python=python, environment=environment, cwd=cwd) as process:
        return process.do(function, arguments, limits=limits, on_message=on_message)


def python_path() -> str:
    """Return PYTHONPATH for a child: the module search path of this process."""
    paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - "" is the working folder
    return os.pathsep.join(paths)


KEPT_VARIABLES = ("PATH", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "ORT_DISABLE_TELEMETRY")
"""Variables that a child's bare environment keeps, with LC_* and PYTHONPATH, but no secrets."""


def bare_environment() -> dict[str, str]:
    """Return the environment of a child that reads untrusted files: it has no keys or tokens."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith("LC_")
    }
    return {**kept, "PYTHONPATH": python_path()}


def _is_whole(message: Mapping[str, Any]) -> bool:
    match message:
        case {"progress": _} | {"answer": _}:
            return True
        case {"raised": [str(), *kinds], "message": str(), "number": int()}:
            return all(isinstance(one, str) for one in kinds)
    return False


def _answer(message: Mapping[str, Any], printed: str) -> Any:
    if "answer" in message:
        return message["answer"]
    kinds = message["raised"]
    failure = JobOutOfMemory if "builtins.MemoryError" in kinds else JobRaised
    raise failure(message["message"], printed, kinds, message["number"])


def _ended(status: int, printed: str) -> JobFailed:
    """Return the failure for the exit status of a job's process, which is negative for a signal."""
    number = -status if status < 0 else status - _SHELL_SIGNAL
    if number not in set(signal.Signals):
        return JobCrashed(f"the process ended with status {status}", printed)
    ended_by = signal.Signals(number)
    kind = JobTimedOut if ended_by in {signal.SIGXCPU, signal.SIGALRM} else JobCrashed
    hint = " (out of memory?)" if ended_by == signal.SIGKILL else ""
    failure = kind(f"the process was ended by {ended_by.name}{hint}", printed)
    failure.signal = ended_by
    return failure


def _descendants(pid: int) -> list[int]:
    """Return the descendants of a process, including those in separate sessions.

    Descendants whose parent has ended are not found. On systems other than Linux, the list is
    empty.
    """
    found = [pid]
    for one in found:
        with suppress(OSError, ValueError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found[1:]


def _end_with_this_process(group: int) -> subprocess.Popen[bytes]:
    """Start a shell that kills a process group when this process ends and closes the shell's input.

    A thread of the child could not do this: a library may hold the interpreter's lock indefinitely.
    """
    return subprocess.Popen(  # noqa: S603 - with a number that is ours
        ("/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$1"', "sh", str(group)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        start_new_session=True,
    )
