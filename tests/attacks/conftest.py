"""Requests by a bystander, sent all the time while a module's tests attack its `server`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple

import pytest

from tests.e2e.processes import ROOT, Cohort
from tests.waiting import wait_until

MAX_WAIT = 1.0
"""Seconds for which the server may compute while a bystander waits, under any attack.

It was 0.03 with endless runs, each of which would take three on the event loop.
"""

MORE_MEMORY = 200 << 20
"""Bytes that may be kept: garbage between two collections, and buffers for the next large body."""

MORE_DESCRIPTORS = 4
"""Files that gRPC's library opens when it is first called, and keeps."""


class Asked(NamedTuple):
    """One request of the bystander, and the test that ran when it was answered."""

    path: str
    status: int
    seconds: float
    waited: float
    test: str


@dataclass(frozen=True)
class Held:
    """The resources that a process holds."""

    memory: int
    descriptors: int


def held(server: Cohort) -> Held:
    """Look at the process of `server`."""
    process = Path(f"/proc/{server.process.pid}")
    memory = re.findall(r"RssAnon:\s+(\d+) kB", (process / "status").read_text())
    return Held(1024 * int(memory[0]), len([*(process / "fd").iterdir()]))


@pytest.fixture(scope="module", autouse=True)
def bystanders(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ask the module's `server` for its health and send the module's OTHERS, all the time.

    OTHERS are `path=body` of a request to a model that is not attacked. At the end of the module,
    each must have been answered with 200. The server must have let no request wait for MAX_WAIT, as
    `tests.attacks.asker` measures it. Memory and descriptors must be back at their values, except
    for MORE_MEMORY. A module sets constants of these names if its limits differ: where callers wait
    for one another, or large bodies leave memory for the next.
    """
    if sys.platform != "linux" or not hasattr(request.module, "server"):
        yield
        return
    server: Cohort = request.getfixturevalue("server")
    others: list[str] = getattr(request.module, "OTHERS", [])
    longest: float = getattr(request.module, "MAX_WAIT", MAX_WAIT)
    more: int = getattr(request.module, "MORE_MEMORY", MORE_MEMORY)
    before = held(server)
    with asking(server, others) as asked:
        yield
    assert {one.status for one in asked} == {200}, [one for one in asked if one.status != 200]
    worst = sorted(asked, key=lambda one: -one.waited)[:5]
    assert worst[0].waited < longest, worst
    wait_until(lambda: held(server).descriptors <= before.descriptors + MORE_DESCRIPTORS)
    wait_until(lambda: held(server).memory <= before.memory + more)


@contextmanager
def asking(server: Cohort, others: Sequence[str]) -> Iterator[list[Asked]]:
    """Have a process ask all the time, and give what it has asked so far."""
    asked: list[Asked] = []
    program = [sys.executable, "-m", "tests.attacks.asker", str(server.process.pid), server.url]
    with subprocess.Popen([*program, *others], stdout=PIPE, text=True, cwd=ROOT) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.endswith("\n"):  # the last one may be cut short
                    path, status, seconds, waited = line.split()
                    test = os.environ.get("PYTEST_CURRENT_TEST", "")
                    asked.append(Asked(path, int(status), float(seconds), float(waited), test))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            wait_until(lambda: asked)
            yield asked
            count = len(asked)
            # The request that waited is among them.
            wait_until(lambda: len(asked) > count + len(others) + 1)
        finally:
            process.kill()
            reader.join()
