"""A pytest plugin that records the result of a run, for `tools.rerun`.

`pytest -p tools.rerun.recording --record FILE` writes FILE at the end of the run.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one run of pytest.

    python: The interpreter that ran it.
    exit_status: Pytest's: 0 if all tests passed, 1 if some failed, more if the run itself failed.
    passed: The number of tests that passed.
    skipped: The number of tests that were skipped.
    failed: The ids of the failed tests, each with its report.
    left: The number of tests that were collected and did not run.
    """

    python: str
    exit_status: int
    passed: int
    skipped: int
    failed: dict[str, str]
    left: int = 0

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read what `write` wrote."""
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --record."""
    parser.addoption("--record", type=Path, metavar="FILE", help="write the result as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that prints the summary; workers of pytest-xdist report to it."""
    if (path := config.getoption("record")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(path.absolute()))


class _Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._ran: set[str] = set()
        self._passed: set[str] = set()
        self._skipped: set[str] = set()
        self._failed: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)
        self._ran.add(report.nodeid)
        if report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed:  # in its setup, its call or its teardown
            self._failed.setdefault(report.nodeid, report.longreprtext)
        elif report.skipped:
            self._skipped.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        record = Record(
            sys.executable,
            int(exitstatus),
            passed=len(self._passed - self._failed.keys()),
            skipped=len(self._skipped - self._failed.keys()),
            failed=self._failed,
            left=session.testscollected - len(self._ran),
        )
        record.write(self._path)
