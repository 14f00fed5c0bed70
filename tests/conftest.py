"""Settings for all tests, and the fixtures that several packages share."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import httpx
import onnxruntime
import pytest
import structlog
from hypothesis import settings

from tests import time_limit
from tests.e2e.forking import FORKS, share_fork_servers, start_fork_servers
from tests.e2e.processes import MODELS, Cohort, cohort

# The second provider is in one of the three runtimes (decision 0001): elsewhere there is
# nothing to skip, since nothing is collected.
collect_ignore = (
    []
    if "OpenVINOExecutionProvider" in onnxruntime.get_available_providers()
    else ["session/test_providers_openvino.py"]
)

# A shell starts its background jobs with SIGINT ignored, and their child processes inherit that.
# Tests that send Ctrl-C would then hang. A handler here is the default there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline for each example would fail on a busy machine. The examples are the same in each run,
# so a failure comes from the change; nightly runs look for new ones.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# By default, lines are for people, and a traceback shows the locals of each frame, which takes
# longer than most tests.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_configure(config: pytest.Config) -> None:
    """Limit the time of each test. Have all processes of pytest-xdist share fork servers.

    Runs that measure each test start no fork servers, since a forked process must be below its
    test's process.
    """
    config.pluginmanager.register(time_limit)
    starts_others = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if FORKS and starts_others and not config.getoption("durations_in", None):
        os.environ.update(share_fork_servers(start_fork_servers()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected: that took a fifth of the processor time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let one process at a time import a module of tests, and the others read its bytecode.

    In a new clone all of them would rewrite and compile every module at once.
    """
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing releases it
        return (yield)


def pytest_collection_finish() -> None:
    """Leave the tests' modules out of each look for garbage: they stay, and are many."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three processes more than there are cores: half of the time a test waits for another."""
    return len(os.sched_getaffinity(0)) + 3


@pytest.fixture(scope="session", autouse=True)
def authorities_read_once() -> Iterator[None]:
    """Let all clients of httpx share what they trust.

    Each client reads the certificate authorities again, which took 57 ms of CPU. Tests make many
    thousands of clients, one for each poll of a server that starts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context)
        )
        yield


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """The bundled models, served by a real process."""
    with cohort(MODELS, tmp_path_factory.mktemp("bundled"), watch_seconds=0) as server:
        yield server


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """An empty models folder."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder
