"""Jobs: functions that run in a child process, so that a crash or a limit costs the answer only.

A job is a function by its dotted path, `module:function`, with arguments and an answer that JSON
has. The child (`cohort.system.job_child`) reads jobs from its standard input, a line each. It
writes lines to its standard output: what the job tells, and at last its answer or what it raised.
Each line begins with the number of the job.
What the job and its libraries print goes to standard error; the end of that is kept.

The child leads a process group. All of it is killed with the job's process, and if this process
ends, however that happens. What the child has started in a session of its own is killed with it,
too, unless the child ended by itself, or with this process.

JobFailed
├── JobRaised          the function raised something
│   └── JobOutOfMemory the system refused it memory
├── JobTimedOut        its time was over
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
"""Begins the command: Python, which does not look for modules in the working folder."""

MAX_ANSWER_BYTES = 1 << 26

MAX_PRINTED_BYTES = 1 << 16
"""Of the end of what a job prints, which may be any amount."""

LINES_SHOWN = 15
"""Of what a job printed before it failed."""

MAX_SENTENCE = 1000

_CHILD = "from cohort.system.job_child import do_jobs; do_jobs()"

_LOOK_SECONDS = 0.2
"""Between two looks whether the process is there: something that it started may hold its pipes."""

_ENDING_SECONDS = 10.0
"""For what a process does at its exit."""

_SHELL_SIGNAL = 128
"""What is added to a signal's number in the exit status of who passes it on, as uv does."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What a job may take; by default whatever it likes.

    seconds: Wall-clock time until its process is killed; None: any.
    cpu_seconds: CPU time until the system ends its process; 0: any.
    memory: Bytes besides what the process has when the job begins; 0: any.
    confined: Whether the process may write no file and open few.
    nice: The niceness of a confined process.

    All but `seconds` hold for the process's later jobs, too, unless those have limits of their own.
    """

    seconds: float | None = None
    cpu_seconds: int = 0
    memory: int = 0
    confined: bool = False
    nice: int = 0


class JobFailed(Exception):
    """A job gave no answer.

    printed: The end of what it printed.
    signal: The signal that ended its process, also if another process passed that on; None: none.
    """

    signal: signal.Signals | None = None

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed

    @property
    def last_lines(self) -> str:
        """The last few lines that it printed, where the reason is."""
        return "\n".join(self.printed.strip().splitlines()[-LINES_SHOWN:])

    @property
    def last_line(self) -> str:
        """The last of them, of which there may be none."""
        return self.last_lines.rpartition("\n")[2]


class JobRaised(JobFailed):
    """The function raised an exception, whose message this has.

    kinds: The full names of its class and of those that this inherits from, the closest first.
    number: The errno of an OSError, else 0.
    """

    def __init__(self, message: str, printed: str, kinds: Sequence[str], number: int = 0) -> None:
        super().__init__(message, printed)
        self.kinds, self.number = kinds, number

    def is_a(self, kind: type[BaseException]) -> bool:
        """Whether the exception was one of `kind`."""
        return f"{kind.__module__}.{kind.__qualname__}" in self.kinds

    @property
    def sentence(self) -> str:
        """The name of the exception's class and its message, on one line."""
        text = " ".join(str(self).split())[:MAX_SENTENCE]
        name = self.kinds[0].rpartition(".")[2]
        return f"{name}: {text}" if text else name


class JobOutOfMemory(JobRaised):
    """The function needed more memory than it was given."""


class JobTimedOut(JobFailed):
    """The job's time was over: CPU time if `signal` is SIGXCPU, else wall-clock time."""


class JobCrashed(JobFailed):
    """The process ended before the job's answer, with an exit status or by another signal.

    A process that floods the pipe of its answers is killed.
    """


class JobProcess:
    """A child process that does jobs, one at a time, until it is closed.

    Where a job fails in any other way than by raising, the process is of no more use.
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

        name: What lists of processes show: the function, say.
        python: Begins the command; default None: this Python.
        environment: Its variables, with PYTHONPATH; default None: this process's.
        cwd: Its working folder; default None: this process's.

        Raises OSError where it cannot be started.
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
        self._open = {self._stdout, self._stderr}  # that may bring more
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
        """The end of what the last job printed."""
        return self._printed.decode(errors="replace")

    def do(
        self,
        function: str,
        arguments: Mapping[str, object],
        *,
        limits: JobLimits = JobLimits(),
        told: Callable[[Any], None] = lambda _: None,
    ) -> Any:
        """Do a job; blocks.

        function: `module:function`.
        arguments: By name; what JSON does not have is sent as text.
        told: Called with what the job tells (`job_child.tell`); may raise, which ends the process.

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
            if "told" in message:
                told(message["told"])
            elif message:
                self._take(self._stderr)
                self._busy = False
                return _answer(message, self.printed)
            elif ended:
                raise _ended(self._process.wait(), self.printed)
            else:
                ended = self._move()

    def allow(self, seconds: float | None) -> None:
        """Give the job that runs so many seconds from now on; None: any."""
        self._ends = None if seconds is None else monotonic() + seconds

    def kill(self) -> None:
        """End the process at once, with all that it started; from any thread."""
        with self._lock:
            if not self._closed:
                others = _descendants(self._process.pid)
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                for pid in others:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process, at once if a job runs, and all that it started."""
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
                self._closed = True  # the group's number may soon be another's
            self._process.wait()
            self._watch.kill()
            self._watch.communicate()

    def _message(self) -> Mapping[str, Any]:
        """The next message of this job that has come; {} if none has."""
        while self._lines:
            number, _, line = self._lines.popleft().partition(b" ")
            if number != b"%d" % self._job:  # printed, or of who came back from a job before
                continue
            with suppress(ValueError):  # something printed it before the child's end began
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
        """Send and take what can be, and wait for that; return whether the process has ended."""
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
        if self._stdout not in self._open:  # nothing comes any more
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
        except BrokenPipeError:  # then there will be no answer either
            self._outgoing = memoryview(b"")

    def _take(self, descriptor: int) -> None:
        """Take what has come through a pipe, which holds no more than this at a time."""
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
                self._unread = bytearray()  # an exception keeps this for a while
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
    told: Callable[[Any], None] = lambda _: None,
) -> Any:
    """Do one job in a process that this call does not outlive: see `JobProcess`.

    Raises JobFailed, and OSError where no process can be started.
    """
    with JobProcess(function, python=python, environment=environment, cwd=cwd) as process:
        return process.do(function, arguments, limits=limits, told=told)


def python_path() -> str:
    """PYTHONPATH for a child: the folders in which this process looks for modules, in order."""
    paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - "" is the working folder
    return os.pathsep.join(paths)


KEPT_VARIABLES = ("PATH", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "ORT_DISABLE_TELEMETRY")
"""The bare environment of a child, besides LC_* and the path of imports: no keys and no tokens."""


def bare_environment() -> dict[str, str]:
    """The environment of a child that looks at what somebody else wrote."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith("LC_")
    }
    return {**kept, "PYTHONPATH": python_path()}


def _is_whole(message: Mapping[str, Any]) -> bool:
    match message:
        case {"told": _} | {"answer": _}:
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
    """The failure of a job whose process ended with an exit status, negative for a signal."""
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
    """What a process has started, and what these have, also in sessions of their own.

    Those whose parent has ended are not found; without Linux, none is.
    """
    found = [pid]
    for one in found:
        with suppress(OSError, ValueError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found[1:]


def _end_with_this_process(group: int) -> subprocess.Popen[bytes]:
    """End a group of processes when this one ends: what a shell reads from it ends then.

    A thread of the child could not: a library may hold the interpreter's lock for ever.
    """
    return subprocess.Popen(  # noqa: S603 - with a number that is ours
        ("/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$1"', "sh", str(group)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        start_new_session=True,
    )
