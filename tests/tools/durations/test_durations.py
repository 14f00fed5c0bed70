"""`make durations` lists the tests and fixtures that took CPU, with that of their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools import ROOT
from tools.durations.__main__ import grouped
from tools.durations.recording import Duration, processor_seconds, read_durations

TESTS = """
import subprocess, sys, time
import pytest

BURN = "import time\\nwhile time.process_time() < 0.3: pass"

@pytest.fixture(scope="module")
def burning():
    end = time.process_time() + 0.3
    while time.process_time() < end: pass

def test_fixture_burns(burning): pass

def test_process_burns():
    subprocess.run([sys.executable, "-c", BURN])

@pytest.mark.parametrize("path", ["/v1"])
def test_waits(path):
    time.sleep(0.3)
"""


def test_time_of_each_test_and_fixture_is_recorded(tmp_path: Path) -> None:
    """CPU of a process that a test started counts, and waiting does not."""
    tmp_path.joinpath("test_them.py").write_text(TESTS)
    command = ["pytest", "-q", "-p", "tools.durations.recording", "--durations-in", "build"]
    printed = subprocess.run(
        [
            sys.executable,
            "-m",
            "tools.durations",
            "build",
            sys.executable,
            "-m",
            *command,
            "test_them.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = grouped(read_durations(tmp_path / "build"), lambda name: name.rpartition("::")[2])
    assert found["test_process_burns"].cpu >= 0.2  # each process loses up to two ticks
    assert found["burning"].cpu >= 0.2
    assert found["test_fixture_burns"].cpu >= 0.2
    waits = found["test_waits[/v1]"]
    assert waits.wall >= 0.3
    assert waits.cpu < waits.wall - 0.1
    assert "test_them.py::test_waits[/v1]" in printed
    assert "cohort: 3 tests took " in printed


def test_processes_that_outlive_their_parent_count() -> None:
    """Processes that a browser leaves behind count in the time of the whole run."""
    orphan = "import time\nwhile time.process_time() < 0.5: pass\nprint()"
    parent = f"import subprocess\nsubprocess.Popen([{sys.executable!r}, '-c', {orphan!r}])"
    # The pipe ends when no process has its standard output open.
    script = '"$0" -c "$1" | cat'
    code = (
        "import sys\n"
        "from tools.durations.__main__ import run\n"
        "print(run(['sh', '-c', *sys.argv[1:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, script, sys.executable, parent],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert float(done.stdout) >= 0.5


def test_ended_processes_count() -> None:
    """What a process below used stays counted once it has ended."""
    before = processor_seconds(os.getpid())
    code = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert processor_seconds(os.getpid()) >= before + 0.1
    assert processor_seconds(2**22 + 1) == 0.0


def test_times_add_up_by_key() -> None:
    """Phases of one test are one line."""
    phases = [Duration("test", "a::b", 1.0, 0.5), Duration("test", "a::c", 2.0, 0.25)]
    assert grouped(phases, lambda name: name[0]) == {"a": Duration("2", "a", 3.0, 0.75)}
