"""A hung test fails with its name and traceback, and the other tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools import ROOT

TESTS = """
import asyncio, os, signal, threading
import pytest
from hypothesis import given, strategies

never = threading.Event()

def wait_for_ever():
    never.wait()

def test_hangs():
    wait_for_ever()

@given(strategies.just(1))
def test_hangs_with_hypothesis(one):
    wait_for_ever()

def test_hangs_in_the_event_loop():
    asyncio.run(asyncio.Event().wait())

@pytest.fixture
def late():
    yield
    wait_for_ever()

def test_fails_and_hangs_in_teardown(late):
    threading.Thread(target=wait_for_ever, name="other", daemon=True).start()
    assert not "here"

def test_hangs_in_native_code():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    wait_for_ever()

def test_good(): pass
"""

CONFTEST = """
from tests import time_limit

def pytest_configure(config):
    config.pluginmanager.register(time_limit)
"""


def run(folder: Path, chosen: str, *options: str) -> str:
    """Run the tests that -k `chosen` selects, of which some fail; return what is printed."""
    folder.joinpath("test_them.py").write_text(TESTS)
    folder.joinpath("pytest.ini").write_text("[pytest]\n")
    folder.joinpath("conftest.py").write_text(CONFTEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", chosen, *options],
        cwd=folder,
        env={
            **os.environ,
            "HANG_SECONDS": "4",
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take half a second to import
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout
    return done.stdout + done.stderr


def test_hung_tests_fail_and_the_others_pass(tmp_path: Path) -> None:
    """A test fails wherever its main thread hangs; a teardown that hangs later also fails."""
    printed = run(tmp_path, "not native")
    assert "4 failed, 1 passed, " in printed
    assert " 1 error in " in printed
    assert printed.count("hung: took more than 4 s") >= 4
    assert 'test_them.py", line 12 in test_hangs\n' in printed
    assert "ERROR test_them.py::test_fails_and_hangs_in_teardown - Failed: hung" in printed
    assert printed.count("line 9 in wait_for_ever") >= 4


def test_process_that_cannot_be_interrupted_is_replaced(tmp_path: Path) -> None:
    """pytest-xdist names the test, and another process runs the rest."""
    printed = run(tmp_path, "native or good", "-p", "xdist", "-n1")
    assert "test_them.py::test_hangs_in_native_code" in printed
    assert "1 failed, 1 passed" in printed
    assert "in wait_for_ever" in printed
