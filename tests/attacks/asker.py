"""A bystander in a separate process: `python -m tests.attacks.asker PID URL PATH=BODY…`.

It asks for `/health/live` and posts each of the given requests, each on a fresh connection, in a
loop. For each it writes a line: the path, the status or 0, and the seconds waited for the answer
and for the server.

The two times differ because on a busy machine both processes also wait for a processor. The kernel
reports that time (run_delay in /proc/PID/task/TID/schedstat). The longest wait of a server thread
and this process's own wait are subtracted. A wait also counts only up to the server's processor
time since the request was sent: without computing, the server delays no caller by computing. A
request that waits for anything else gets status 0.
"""

from __future__ import annotations

import http.client
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

UNANSWERED = 120
"""Seconds after which a request counts as not answered."""

PAUSE = 0.02
"""Seconds between two requests, so that asking costs the server little."""


def delays(pid: int) -> dict[str, int]:
    """Return how long each thread of a process has waited for a processor, in nanoseconds."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            found[thread.name] = int((thread / "schedstat").read_text().split()[1])
    return found


def longest(before: dict[str, int], after: dict[str, int]) -> float:
    """The longest that a thread waited for a processor between the two, in seconds."""
    return max((after[one] - before.get(one, 0) for one in after), default=0) / 1e9


def processor_time(pid: int) -> float:
    """Seconds that all threads of a process have run, to the nanosecond.

    The clock of another process, as clock_getcpuclockid(3) would name it.
    """
    return time.clock_gettime((~pid << 3) | 2)


def main() -> None:
    """Ask until this process is ended."""
    pid, url, *others = sys.argv[1:]
    host = urlsplit(url).netloc
    asked = [("/health/live", "")] + [(path, body) for path, _, body in map(split, others)]
    pause = threading.Event()  # never set
    while True:
        for path, body in asked:
            theirs, ours = delays(int(pid)), delays(os.getpid())
            computed, began = processor_time(int(pid)), time.monotonic()
            connection = http.client.HTTPConnection(host, timeout=UNANSWERED)
            status = 0
            with suppress(OSError, http.client.HTTPException):
                connection.request(
                    "POST" if body else "GET", path, body or None, {"connection": "close"}
                )
                status = connection.getresponse().status
            ended = time.monotonic()
            connection.close()
            busy = longest(theirs, delays(int(pid))) + longest(ours, delays(os.getpid()))
            took, computed = ended - began, processor_time(int(pid)) - computed
            waited = min(max(took - busy, 0.0), computed)
            sys.stdout.write(f"{path} {status} {took} {waited}\n")
            sys.stdout.flush()
            pause.wait(PAUSE)


def split(text: str) -> tuple[str, str, str]:
    """`PATH=BODY`."""
    return text.partition("=")


if __name__ == "__main__":
    main()
