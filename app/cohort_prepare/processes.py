"""A child process that does one thing, ends with its parent's wish for it, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

_LOOK_SECONDS = 0.2
"""Between two looks at how far a child is."""


KEPT_BYTES = 1 << 16
"""Of the end of what a child prints, which may be any amount."""


class TookTooLong(Exception):
    """A child was ended, since its time was over."""


def run_child(
    command: Sequence[str],
    folder: Path,
    *,
    path: str,
    cwd: Path | None = None,
    seconds: float | None = None,
    look: Callable[[], None] | None = None,
) -> tuple[int, str]:
    """Run a process to its end, in a group of its own that ends with this call.

    folder: Where what it prints is kept.
    path: Its PYTHONPATH.
    cwd: Its working folder; default None: that of this process.
    seconds: How long it may take; default None: as long as it likes.
    look: Called now and then while it runs; default: nothing is.

    Returns its exit status, negative for a signal, and the end of what it printed. Raises
    TookTooLong.
    """
    log = folder / "printed.txt"
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",  # sets are in the same order every time, and so are graphs
    }
    with log.open("wb") as printed:
        child = subprocess.Popen(  # noqa: S603 - a Python of ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
        try:
            with _ending_with_this_process(child.pid):
                status = _wait(child, seconds, look)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return status, _end_of(log)


@contextmanager
def _ending_with_this_process(group: int) -> Iterator[None]:
    """End a group of processes if this one is killed: what a shell reads from it ends then."""
    watch = subprocess.Popen(  # noqa: S603 - with a number that is ours
        ("/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$1"', "sh", str(group)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watch.kill()
        watch.communicate()


def _end_of(log: Path) -> str:
    with log.open("rb") as printed:
        size = printed.seek(0, os.SEEK_END)
        printed.seek(max(0, size - KEPT_BYTES))
        return printed.read(KEPT_BYTES).decode(errors="replace")


def _wait(
    child: subprocess.Popen[bytes], seconds: float | None, look: Callable[[], None] | None
) -> int:
    ends = None if seconds is None else monotonic() + seconds
    while True:
        left = _LOOK_SECONDS if ends is None else min(_LOOK_SECONDS, max(0.0, ends - monotonic()))
        try:
            return child.wait(None if ends is None and look is None else left)
        except subprocess.TimeoutExpired:
            if look is not None:
                look()
            if ends is not None and monotonic() >= ends:
                raise TookTooLong from None


LINES_SHOWN = 15
"""Of what a child printed before it failed."""


def last_lines(printed: str) -> str:
    """The end of what a child printed, where the reason is."""
    return "\n".join(printed.strip().splitlines()[-LINES_SHOWN:])
