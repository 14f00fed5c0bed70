"""Run tests in a copy of the tree, each time in a new process with the libraries imported.

A process forked from one that has imported them starts in a tenth of the time that importing takes.
The package and its tests are imported again, from the copy.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

LIBRARIES = (
    "coverage", "fastapi", "httptools", "hypothesis", "numpy", "onnx", "onnxruntime", "orjson",
    "prometheus_client", "pydantic", "pytest", "pytest_asyncio", "ruamel.yaml", "rich", "simdjson",
    "structlog", "uvicorn", "uvloop",
)  # fmt: skip
"""Imported once. Not grpc, which starts threads: they would be missing after a fork."""

ALLOWANCE = 30.0, 5.0
"""A run may take this many seconds plus this multiple of its tests' time when unchanged."""

RAN = 10
"""Added to pytest's exit code; a process that does not reach pytest exits with 1."""

PATIENCE = 5.0
"""Replaces tests.waiting.PATIENCE: the seconds a test waits for an event before it fails."""

SLOW = 1.0
"""Tests that take longer than this many seconds run after all others."""

Outcome = Literal["killed", "timeout", "survived"]


def context(libraries: Sequence[str] = LIBRARIES) -> ForkServerContext:
    """Return the context that processes are forked from, with `libraries` imported."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([*libraries])
    return made


@dataclass(frozen=True, slots=True)
class Baseline:
    """A run of the unchanged tests: seconds by test, and the tests that reach each line."""

    seconds: Mapping[str, float]
    reached: Mapping[str, Mapping[int, frozenset[str]]]

    def tests(self, file: str, lines: range, *, runs: bool) -> frozenset[str]:
        """Return the tests that reach any of `lines`; all tests for code that runs on import."""
        if not runs:
            return frozenset(self.seconds)
        by_line = self.reached.get(file, {})
        return frozenset().union(*(by_line.get(line, ()) for line in lines))

    def timeout(self, tests: Iterable[str]) -> float:
        least, factor = ALLOWANCE
        return least + factor * sum(self.seconds[test] for test in tests)

    def in_order(self, tests: Iterable[str]) -> list[str]:
        """Sort the tests: fast files first, slow tests last."""
        wanted = set(tests)
        files: dict[str, float] = {}
        for test in wanted:
            files[_file(test)] = files.get(_file(test), 0.0) + self.seconds[test]
        order = [test for test in self.seconds if test in wanted]
        return sorted(order, key=lambda test: (self.seconds[test] > SLOW, files[_file(test)]))


def _file(test: str) -> str:
    return test.partition("::")[0]


class Tree:
    """A copy of the checkout's files, tracked or not, without what git ignores."""

    def __init__(self, root: Path, copy: Path, made_in: ForkServerContext) -> None:
        self._root, self._copy, self._context = root, copy, made_in
        for name in _files(root):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)

    def measure(self, paths: Sequence[str]) -> Baseline:
        """Run all tests of `paths` once. Raises RuntimeError if they fail."""
        result = self._copy / "baseline.json"
        code = self._run([*paths], None, timeout=3600, result=result)
        if code != RAN:
            log = (self._copy / "output.txt").read_text(errors="replace")
            raise RuntimeError(f"the tests fail without any mutation:\n{log[-4000:]}")
        found = json.loads(result.read_text())
        tests = list(found["seconds"])
        reached = {
            file: {int(line): frozenset(tests[one] for one in ran) for line, ran in lines.items()}
            for file, lines in found["reached"].items()
        }
        return Baseline(found["seconds"], reached)

    def run(self, file: str, source: str, tests: Sequence[str], timeout: float) -> Outcome:
        """Run `tests` in their order, with `source` in place of `file`, until one fails."""
        path = self._copy / file
        original = path.read_bytes()
        self._write(path, source.encode())
        try:
            code = self._run(sorted({_file(test) for test in tests}), tests, timeout=timeout)
        finally:
            self._write(path, original)
        if code is None:
            return "timeout"
        if code in {1, RAN + pytest.ExitCode.NO_TESTS_COLLECTED}:
            raise RuntimeError(f"the tests were not run: {tests[:3]}")
        return "survived" if code == RAN else "killed"

    def _write(self, path: Path, source: bytes) -> None:
        """Write a module, and delete its bytecode, which is matched by size and second only."""
        path.write_bytes(source)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def _run(
        self,
        paths: list[str],
        tests: Sequence[str] | None,
        *,
        timeout: float,
        result: Path | None = None,
    ) -> int | None:
        process = self._context.Process(
            target=_child, args=(str(self._root), str(self._copy), paths, tests, result)
        )
        process.start()
        process.join(timeout)
        finished = not process.is_alive()
        assert process.pid is not None
        process.kill()
        process.join()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the servers that its tests started
        return process.exitcode if finished else None


def _files(root: Path) -> Iterator[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    yield from (name for name in listed.split("\0") if (root / name).is_file())


# --- In the process of a run


def _child(
    root: str, copy: str, paths: list[str], tests: Sequence[str] | None, result: Path | None
) -> None:
    os.setsid()
    os.chdir(copy)
    source = f"{copy}/app"
    sys.path[:] = [copy, source, *(one for one in sys.path if one not in {root, f"{root}/app", ""})]
    os.environ["PYTHONPATH"] = f"{copy}{os.pathsep}{source}"
    ours = {"cohort", "cohort_prepare", "tests", "tools"}
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    with Path("output.txt").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    _make_hypothesis_repeatable()
    try:
        code = _pytest(Path(copy), paths, tests, result)
    except BaseException:  # noqa: BLE001 - whatever a mutant raises as it is imported
        code = pytest.ExitCode.INTERNAL_ERROR
    sys.stdout.flush()
    os._exit(RAN + code)  # threads that a mutant left behind would hold it up


def _pytest(copy: Path, paths: list[str], tests: Sequence[str] | None, result: Path | None) -> int:
    importlib.import_module("tests.waiting").PATIENCE = PATIENCE  # type: ignore[attr-defined]
    options = ["-q", "-n0", "--assert=plain", "-p", "no:cacheprovider"]
    if result is None:
        return pytest.main([*options, "-x", *paths], plugins=[_Selection(tests or ())])
    measurement = _Measurement(copy)
    code = pytest.main([*options, *paths], plugins=[measurement])
    result.write_text(json.dumps(measurement.found()))
    return code


def _make_hypothesis_repeatable() -> None:
    """Use the same examples every time, and do not shrink them."""
    import hypothesis

    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, phases=phases
    )
    hypothesis.settings.load_profile("mutants")


class _Selection:
    """A pytest plugin that runs some tests, in their order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._place = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._place]
        items.sort(key=lambda item: self._place[item.nodeid])


class _Measurement:
    """A pytest plugin that notes how long each test takes, and the lines it reaches."""

    def __init__(self, root: Path) -> None:
        import coverage

        self._root = root
        self._seconds: dict[str, float] = {}
        source = [str(root / "app")]
        self._coverage = coverage.Coverage(data_file=None, config_file=False, source=source)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._seconds[item.nodeid] = 0.0
        self._coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def found(self) -> dict[str, Any]:
        self._coverage.stop()
        data = self._coverage.get_data()
        number = {test: place for place, test in enumerate(self._seconds)}
        return {
            "seconds": self._seconds,
            "reached": {
                str(Path(file).relative_to(self._root)): {
                    line: sorted(number[test] for test in tests if test in number)
                    for line, tests in data.contexts_by_lineno(file).items()
                }
                for file in data.measured_files()
            },
        }
