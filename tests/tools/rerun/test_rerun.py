"""A failed test runs once more, alone: one that passes then is flaky, and is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools import ROOT
from tools.rerun.__main__ import reason_to_stop
from tools.rerun.recording import Record

TESTS = """
import os
from pathlib import Path
import pytest

def test_good(): pass

@pytest.mark.skipif("skip" not in os.environ["FAULTS"], reason="not now")
def test_skips_alone():
    if Path("skip").exists():
        pytest.skip("not there")
    Path("skip").touch()
    assert not "here"

def test_skipped(): pytest.skip("not here")

@pytest.fixture
def late():
    yield
    assert Path("teardown").exists() or Path("teardown").touch()

@pytest.mark.skipif("teardown" not in os.environ["FAULTS"], reason="not now")
def test_fails_in_teardown_at_first(late): pass

@pytest.mark.skipif("flaky" not in os.environ["FAULTS"], reason="not now")
@pytest.mark.parametrize("place", os.environ["FAULTS"].split())
def test_fails_at_first(place):
    assert Path(f"seen-{place}").exists() or Path(f"seen-{place}").touch()

@pytest.mark.skipif("bad" not in os.environ["FAULTS"], reason="not now")
def test_bad(): assert "always" == "bad"

@pytest.mark.skipif("crash" not in os.environ["FAULTS"], reason="not now")
def test_crashes_at_first():
    if not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(1)
"""

XDIST = ("-p", "xdist", "-n2")


def run(folder: Path, faults: str, *options: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run TESTS with `faults`, then the failed ones again; return the result and flaky.json."""
    folder.joinpath("test_them.py").write_text(TESTS)
    folder.joinpath("pytest.ini").write_text("[pytest]\n")
    environment = {
        **os.environ,
        "FAULTS": faults,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take half a second to import
    }

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    record = "build/tests/one.json"
    first = python("pytest", "-q", "-p", "tools.rerun.recording", "--record", record, *options)
    done = python("tools.rerun", str(first.returncode), record)
    flaky = folder / "build" / "flaky.json"
    return done, flaky.read_text() if flaky.exists() else ""


@pytest.mark.parametrize("options", [(), XDIST])
def test_test_that_passes_alone_is_flaky(tmp_path: Path, options: Sequence[str]) -> None:
    """The run passes, names the tests, counts them as passed, and keeps their first reports."""
    done, flaky = run(tmp_path, "flaky teardown", *options)
    assert done.returncode == 0
    named = [line for line in done.stdout.splitlines() if line.startswith("cohort: flaky: ")]
    assert len(named) == 3
    assert done.stdout.endswith("\n4 passed, 0 failed, 4 skipped\n")
    reports = json.loads(flaky)
    assert len(reports) == 3
    assert "assert (False" in reports["test_them.py::test_fails_at_first[flaky]"]


def test_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    """It counts as failed, and flaky ones are still named."""
    done, flaky = run(tmp_path, "flaky bad")
    assert done.returncode == 1
    assert done.stdout.endswith("\n3 passed, 1 failed, 4 skipped\n")
    assert set(json.loads(flaky)) == {
        "test_them.py::test_fails_at_first[flaky]",
        "test_them.py::test_fails_at_first[bad]",
    }


def test_test_that_is_skipped_alone_is_not_flaky(tmp_path: Path) -> None:
    """Nothing shows that it was luck."""
    done, flaky = run(tmp_path, "skip")
    assert (done.returncode, json.loads(flaky)) == (1, {})


@pytest.mark.parametrize("options", [("-x",), ("-x", *XDIST)])
def test_run_that_stopped_early_fails(tmp_path: Path, options: Sequence[str]) -> None:
    """Tests that did not run may be the ones that fail."""
    done, flaky = run(tmp_path, "flaky bad", *options)
    assert (done.returncode, flaky) == (1, "")


def test_crash_of_a_worker_is_a_failure_of_its_test(tmp_path: Path) -> None:
    """The test in which a process of pytest-xdist ended runs again as others do."""
    done, flaky = run(tmp_path, "crash", *XDIST)
    assert done.returncode == 0
    assert [*json.loads(flaky)] == ["test_them.py::test_crashes_at_first"]


def test_more_than_three_failures_are_no_luck(tmp_path: Path) -> None:
    """The run fails without another try, and gives the reason."""
    done, flaky = run(tmp_path, "flaky a b c")
    assert done.returncode == 1
    assert done.stdout == "cohort: 4 tests failed; at most 3 run again\n"
    assert flaky == ""


def test_good_run_has_no_more_to_say(tmp_path: Path) -> None:
    """Pytest's closing line stays the last, and the list of flaky tests is empty."""
    done, flaky = run(tmp_path, "")
    assert (done.returncode, done.stdout, json.loads(flaky)) == (0, "", {})


@pytest.mark.parametrize("broken", ["pass (", "import no_such_module"])
def test_module_that_cannot_be_collected_fails_the_run(tmp_path: Path, broken: str) -> None:
    """Its tests did not run at all: running what failed again would not show them."""
    tmp_path.joinpath("test_broken.py").write_text(broken)
    done, _ = run(tmp_path, "")
    assert done.returncode == 1
    assert done.stdout == "cohort: pytest ended with status 2\n"


GOOD = Record("python", 0, 9, 0, {})


@pytest.mark.parametrize(
    ("status", "records", "reason"),
    [
        (0, [GOOD, None], "a run of pytest recorded nothing"),
        (2, [None, GOOD], "a run of pytest recorded nothing"),
        (2, [GOOD, GOOD], "make test failed, and no test did"),
        (2, [Record("python", 3, 9, 0, {"a": ""})], "pytest ended with status 3"),
        (2, [Record("python", 5, 0, 0, {})], "pytest ended with status 5"),
        (2, [Record("python", 1, 9, 0, {})], "pytest failed, and no test did"),
        (2, [Record("python", 1, 3, 0, {"a": ""}, 5)], "5 tests did not run"),
        (
            2,
            [Record("python", 1, 0, 0, {"a": "", "b": ""})] * 2,
            "4 tests failed; at most 3 run again",
        ),
        (2, [GOOD, Record("python", 1, 8, 0, {"a": ""})], ""),
        (0, [GOOD, GOOD], ""),
    ],
)
def test_run_that_failed_otherwise_stays_failed(
    status: int, records: Sequence[Record | None], reason: str
) -> None:
    """Passing tests do not make up for a run that ended early or did not begin."""
    assert reason_to_stop(status, records) == reason
