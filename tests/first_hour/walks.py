"""Walks: pages with the commands that a user types in the first hour, and the expected output.

A step is a line of a console block that begins with `$ `; lines that begin with `> ` continue it.
The lines below it must be in its output, in that order; others may be between them. `…` in a line
matches any text. A last line `[7]` is the exit status, which is 0 otherwise. Blocks of ```console
long take minutes, or fetch much: only `make first-hour` types them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from threading import Timer

from tests.e2e.processes import free_port
from tests.working_copy import copy_working_tree

BLOCK = re.compile(r"^```console( long)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRACEBACK = "Traceback (most recent call last)"

PATIENCE_WITH_A_STEP = 900.0
"""Seconds: the longest step installs PyTorch or TensorFlow."""

# Steps come through a separate descriptor, so that no program reads the next one as its input.
LOOP = """
while IFS= read -r -d '' -u {steps} step; do
    eval "$step" </dev/null {steps}<&-
    printf '\\n%s %d\\n' {end} $?
done
"""


@dataclass(frozen=True, slots=True)
class Step:
    """The typed command, the lines that must be seen, and the exit status."""

    typed: str
    seen: tuple[str, ...] = ()
    status: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """A step's output, its exit status, and the seconds that it took."""

    printed: str
    status: int
    seconds: float


def read_steps(page: str, *, long: bool) -> list[Step]:
    """The steps of a page in their order; without those of long blocks unless `long`."""
    steps = []
    for takes_long, block in BLOCK.findall(page):
        if takes_long and not long:
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, *rest = part.splitlines()
            more = [line[2:] for line in rest if line.startswith(">")]
            seen = [line.strip() for line in rest if line.strip() and not line.startswith(">")]
            status = 0
            if seen and (given := re.fullmatch(r"\[(\d+)\]", seen[-1])):
                status = int(given[1])
                seen.pop()
            steps.append(Step("\n".join([first, *more]), tuple(seen), status))
    return steps


def complaint(step: Step, done: Done) -> str:
    """Return the difference between a step and the page, or "" if they agree."""
    if done.status != step.status:
        return f"exit status {done.status}, not {step.status}"
    lines = iter(done.printed.splitlines())
    for wanted in step.seen:
        pattern = ".*".join(map(re.escape, wanted.split("…")))
        if not any(re.search(pattern, line) for line in lines):
            return f"not seen: {wanted}"
    if TRACEBACK in done.printed and not any(TRACEBACK in line for line in step.seen):
        return "a traceback is no answer"
    return ""


class Shell:
    """A bash in which one step is typed after the other.

    Pages say localhost:8000 and 8001 for gRPC; here these are `ports`, so that several walks and
    servers share a machine.
    """

    def __init__(self, folder: Path, environment: dict[str, str], ports: dict[str, int]) -> None:
        self._end = token_hex(8)
        self._ports = ports
        reading, writing = os.pipe()
        self._steps = os.fdopen(writing, "wb", buffering=0)
        self._bash = subprocess.Popen(
            ["bash", "-c", LOOP.format(steps=reading, end=self._end)],
            cwd=folder,
            env=environment,
            pass_fds=[reading],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        os.close(reading)

    def type(self, typed: str) -> Done:
        """Type a step and wait for its end; one that takes too long ends the shell: status -1."""
        for said, port in self._ports.items():
            typed = re.sub(rf"(localhost|127\.0\.0\.1):{said}\b", rf"\1:{port}", typed)
        start = time.monotonic()
        late = Timer(PATIENCE_WITH_A_STEP, self._kill)
        late.start()
        try:
            self._steps.write(typed.encode() + b"\0")
            printed, status = self._read()
        finally:
            late.cancel()
        for said, port in self._ports.items():
            printed = printed.replace(f":{port}", f":{said}")
        return Done(printed, status, time.monotonic() - start)

    def _read(self) -> tuple[str, int]:
        assert self._bash.stdout is not None
        printed: list[str] = []
        for line in self._bash.stdout:
            if line.startswith(self._end):
                return "".join(printed).removesuffix("\n"), int(line.split()[1])
            printed.append(line)
        return "".join(printed), -1

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)

    def end(self) -> None:
        """End bash and all that it started."""
        self._kill()
        self._bash.wait()
        self._steps.close()
        assert self._bash.stdout is not None
        self._bash.stdout.close()


@contextmanager
def shell(folder: Path, *, path: Sequence[Path] = (), **environment: str) -> Iterator[Shell]:
    """A shell in a fresh copy of the checkout below `folder`, with `path` before the machine's.

    `make install` puts its command into `folder`, too, which is on the path.
    """
    checkout, programs = folder / "cohort", folder / "bin"
    copy_working_tree(checkout)
    ports = {"8000": free_port(), "8001": free_port()}
    started = Shell(
        checkout,
        {
            **{name: value for name, value in os.environ.items() if not _is_ours(name)},
            "PATH": os.pathsep.join([str(programs), *map(str, path), os.environ["PATH"]]),
            "BIN": str(programs),
            "COHORT_PORT": str(ports["8000"]),
            "COHORT_GRPC_PORT": str(ports["8001"]),
            "SERVER": f"http://localhost:{ports['8000']}",
            "COHORT_STATE": str(folder / "state"),
            "COHORT_CACHE": str(folder / "cache"),
            **environment,
        },
        ports,
    )
    try:
        yield started
    finally:
        started.end()


def _is_ours(name: str) -> bool:
    """Return True for a variable that developers set and a newcomer would not have."""
    return name.startswith(("COHORT_", "VIRTUAL_ENV", "PYTEST_", "PYTHON", "MAKE"))


def walk(page: Path, started: Shell, *, long: bool, say: Callable[[str], object]) -> None:
    """Type all steps of a page; AssertionError at the first whose outcome is not the page's."""
    for step in read_steps(page.read_text(encoding="utf-8"), long=long):
        say(f"$ {step.typed}")
        done = started.type(step.typed)
        say(f"{done.printed}\n# {done.seconds:.1f} s")
        if wrong := complaint(step, done):
            raise AssertionError(f"{page.name}: {wrong}\n$ {step.typed}\n{done.printed[-4000:]}")
