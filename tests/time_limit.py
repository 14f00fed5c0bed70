"""A pytest plugin that fails a hung test with the tracebacks of all threads, and runs the others.

Each test may take HANG_SECONDS, by default 900: longer than any test that waits with
`tests.waiting` takes to fail. Then the main thread is interrupted, in a wait or between two
instructions. It is interrupted again every AGAIN seconds, since the test's teardown may hang as
well. A thread that does not react to two interrupts is in native code. The process then prints the
tracebacks on standard error and ends, and pytest-xdist reports the test and starts another process.

pytest-timeout 2.4 is not used, for three reasons. It interrupts once, while Hypothesis runs a
failed example again. Its limit ends with the first failure, so that a teardown may hang. Under
pytest-xdist it loses the tracebacks of the other threads.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
from collections.abc import Generator
from types import FrameType

import pytest

HANG_SECONDS = float(os.environ.get("HANG_SECONDS", "900"))

AGAIN = min(60.0, HANG_SECONDS)
"""Seconds between two interrupts of a test that hangs on."""

_stderr = 2


def pytest_configure(config: pytest.Config) -> None:
    """Keep standard error: pytest puts a file in its place while a test runs."""
    global _stderr  # noqa: PLW0603 - a plugin is a module
    _stderr = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Limit the setup, call and teardown of a test together."""
    if item.config.getoption("usepdb") or item.config.getoption("trace"):
        return (yield)  # a person may think for longer
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS, AGAIN)
    _end_later(HANG_SECONDS + 2 * AGAIN)
    try:
        return (yield)
    finally:
        pytest_enter_pdb()
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(trylast=True)
def pytest_exception_interact() -> None:
    """Keep the limit for the teardown of a test that failed: pytest cancels all dumps here."""
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        _end_later(HANG_SECONDS + 2 * AGAIN)


def pytest_enter_pdb() -> None:
    """Lift the limit, for a person at `breakpoint()`."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()


def _end_later(seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=_stderr)


def _interrupt(number: int, frame: FrameType | None) -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        pytest.fail(f"hung: took more than {HANG_SECONDS:g} s\n{file.read()}")
