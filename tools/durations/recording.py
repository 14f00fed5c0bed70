"""A pytest plugin that records the time that each phase of a test and each fixture takes.

`pytest -p tools.durations.recording --durations-in FOLDER` writes one file for each process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Duration:
    """The time that something took.

    kind: "test" for a phase of a test, or "fixture".
    name: The id of the test, or of the fixture with the path of the tests that may use it.
    wall: Seconds.
    cpu: Seconds of processor time of this process and of all processes below it.
    """

    kind: str
    name: str
    wall: float
    cpu: float


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and of all below it, ended ones included."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        own = sum(map(int, fields[11:15])) / _TICKS  # user, system, and both of ended children
        return own + sum(map(processor_seconds, _children(pid)))
    return 0.0  # it ended just now


def _children(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            yield from map(int, (thread / "children").read_text().split())


def read_durations(folder: Path) -> list[Duration]:
    """Read what all processes of a run wrote."""
    lines = (line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines())
    return [Duration(**json.loads(line)) for line in lines]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --durations-in."""
    parser.addoption("--durations-in", type=Path, metavar="FOLDER", help="write durations there")


def pytest_configure(config: pytest.Config) -> None:
    """Record in each process that runs tests."""
    if folder := config.getoption("durations_in"):
        config.pluginmanager.register(_Recorder(folder.absolute()))


class _Recorder:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{os.getpid()}.jsonl").open("w", buffering=1)

    @contextmanager
    def _recorded(self, kind: str, name: str) -> Iterator[None]:
        wall, cpu = time.monotonic(), processor_seconds(os.getpid())
        try:
            yield
        finally:
            took = time.monotonic() - wall
            used = processor_seconds(os.getpid()) - cpu
            self._file.write(json.dumps(asdict(Duration(kind, name, took, used))) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._recorded("test", item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._recorded("test", item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._recorded("test", item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        with self._recorded("fixture", f"{fixturedef.baseid}::{fixturedef.argname}"):
            return (yield)

    def pytest_unconfigure(self) -> None:
        self._file.close()
