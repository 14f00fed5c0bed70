"""Exit codes and output of commands that prepare models, for any input and any stdout."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import rich_click as click
from click.testing import CliRunner

from cohort.cli import frame
from cohort.cli.frame import Report, reporting
from cohort_prepare.evaluating.cases import read_cases
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.onnx_files import ABANDONED_SECONDS, temporary_folder
from tests import onnx_models
from tests.cli.test_cli import run
from tests.e2e.processes import ROOT, quick_command
from tests.waiting import wait_until


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose maker clears the screen."""
    made = onnx_models.mlp()
    made.producer_name = "pink\x1b[2J\nelephant"
    return onnx_models.save(made, tmp_path / "model.onnx")


def lying(path: Path) -> Path:
    """A .npz of 200 bytes that promises an array of petabytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (2**50, 4)}
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", header.getvalue() + bytes(16))
    return path


def test_array_that_is_less_than_it_promises_is_not_read(tmp_path: Path) -> None:
    """No memory is allocated for data that the header claims and the file does not have."""
    with pytest.raises(Misused, match=r"does not match the shape \[1125899906842624, 4\]"):
        read_cases(lying(tmp_path / "cases.npz"))


def test_array_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """The intended one of the two cannot be known."""
    array = io.BytesIO()
    np.save(array, np.eye(2))
    with zipfile.ZipFile(tmp_path / "cases.npz", "w") as file:
        file.writestr("x.npy", array.getvalue())
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("x.npy", array.getvalue())
    with pytest.raises(Misused, match="two arrays of the same name"):
        read_cases(tmp_path / "cases.npz")


def start(
    *arguments: str | Path, redirect: str = "", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a separate process, in a shell."""
    command = [sys.executable, "-m", "cohort", *map(str, arguments)]
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirect}', "sh", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        check=False,
    )


def test_full_output_is_no_verdict(model: Path) -> None:
    """A report that cannot be printed is an error on stderr, with the exit code of wrong use."""
    done = start("inspect", model, "--json", redirect=">/dev/full")
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert b"cannot print the report" in done.stderr


def test_names_of_others_move_no_cursor_in_any_locale(model: Path) -> None:
    """A producer's name in a file is shown as text, and arrows are escaped if needed."""
    done = start("inspect", model, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert b"pink" in done.stdout
    assert b"\x1b" not in done.stdout


def test_failure_is_json_in_every_command(tmp_path: Path, model: Path) -> None:
    """A false header gives one object on stdout, and exit code 2."""
    cases = lying(tmp_path / "cases.npz")
    done = start("verify", model, model, "--inputs", cases, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["command"], found["good"]) == (2, "verify", False)
    assert "does not match the shape" in found["error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "No such command 'nope'"),
        (["verify"], "Missing argument"),
        (["profile", "--nope"], "No such option '--nope'"),
        (["rollout", "nope"], "No such command 'nope'"),
    ],
)
def test_wrong_use_of_any_command_is_json(arguments: list[str], said: str) -> None:
    """It is one object with the command's name, as when the command itself fails."""
    done = run(*arguments, "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["command"], found["good"]) == (2, arguments[0], False)
    assert said in found["error"]


@pytest.mark.parametrize(
    ("command", "option"), [("inspect", "--html"), ("optimize", "--out"), ("publish", "--to")]
)
def test_path_that_cannot_be_written_is_wrong_use(model: Path, command: str, option: str) -> None:
    """The error is a sentence with the path, without a traceback."""
    more = ["--name", "a"] if command == "publish" else []
    done = run(command, str(model), option, "/proc/x", *more, "--json")
    assert done.exit_code == 2, done.output
    assert "/proc" in json.loads(done.stdout)["error"]
    assert "Traceback" not in done.stderr


def test_absent_model_is_told_before_its_source_is_made(tmp_path: Path) -> None:
    """Loading a framework may take minutes."""
    done = run("verify", "no_such_module:model", str(tmp_path / "nothere.onnx"), "--json")
    assert done.exit_code == 2
    assert "nothere.onnx not found" in json.loads(done.stdout)["error"]


ENDLESS = """
import os, pathlib, threading
pathlib.Path("pid").write_text(str(os.getpid()))
def model():
    threading.Event().wait()
"""


def test_killed_command_leaves_no_child(tmp_path: Path) -> None:
    """The user's module ends also if the command had no time to end it."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    convert = ("convert", "endless:model", "--from", "sklearn", "--out", "model.onnx")
    command = subprocess.Popen(
        [*quick_command(), *convert],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    command.send_signal(signal.SIGKILL)
    command.wait()
    wait_until(lambda: has_ended(pid))


def has_ended(pid: int) -> bool:
    """Return True if a process is gone, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_folders_of_killed_commands_are_swept(tmp_path: Path) -> None:
    """They are removed after a day; a folder that may be in use stays."""
    (tmp_path / ".preparing-old").mkdir()
    (tmp_path / ".preparing-new").mkdir()
    then = (tmp_path / ".preparing-new").stat().st_mtime - ABANDONED_SECONDS - 60
    os.utime(tmp_path / ".preparing-old", (then, then))
    with temporary_folder(tmp_path):
        assert not (tmp_path / ".preparing-old").exists()
    assert [path.name for path in tmp_path.iterdir()] == [".preparing-new"]


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (OSError(28, "No space left on device"), 2, "No space left on device; nothing was written"),
        (MemoryError(), 2, "out of memory"),
        (ImportError("No module named 'onnx'", name="onnx"), 2, "needs the package onnx"),
        (Rejected("it differs"), 1, "it differs"),
    ],
)
def test_code_1_is_a_verdict_and_nothing_else(failure: Exception, code: int, said: str) -> None:
    """A fault of the machine is not a verdict on a model."""

    @click.command()
    @reporting
    def fail() -> Report:
        raise failure

    done = CliRunner().invoke(fail, ["--json"])
    assert done.exit_code == code
    assert said in json.loads(done.stdout)["error"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_in_the_middle_of_an_import_it_says_so(number: signal.Signals) -> None:
    """Packages turn what ends their import into an ImportError, as numpy does."""

    @click.command()
    @reporting
    def slow() -> Report:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise ImportError("numpy could not be imported") from None
        return Report(True, {})

    before = signal.signal(number, signal.SIG_DFL)  # these tests may run under nohup
    try:
        done = CliRunner().invoke(slow, ["--json"])
    finally:
        signal.signal(number, before)
    assert done.exit_code == 130
    assert json.loads(done.stdout)["error"] == "stopped; nothing was written"


def test_a_long_step_is_told_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has a line for each step, once it has taken a while."""
    monkeypatch.setattr(frame, "LINE_SECONDS", 0.001)
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    with frame.progress() as shown:
        task = shown.add_task("Converting", total=None)
        wait_until(lambda: "Converting" in told.getvalue())
        shown.update(task, description="Comparing")
        wait_until(lambda: "Comparing" in told.getvalue())
    assert told.getvalue().splitlines() == ["Converting …", "Comparing …"]


COMMAND = """
import os, pathlib, signal, sys
import rich_click as click
from cohort.cli.frame import Report, reporting

# These tests may run under nohup, or as a shell's background job.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

@click.command()
@reporting
def command():
    {body}

command()
"""


def command_that(body: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a command in a separate process, which prints JSON."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(body=body), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGSEGV, 1, "a library crashed on the model (SIGSEGV)"),
        (signal.SIGABRT, 1, "a library crashed on the model (SIGABRT)"),
        (signal.SIGKILL, 2, "killed by SIGKILL (out of memory?)"),
    ],
)
def test_a_crash_is_told(tmp_path: Path, number: signal.Signals, code: int, said: str) -> None:
    """It is reported like any failure: one JSON object, a sentence and an exit code."""
    process = command_that(f"os.kill(os.getpid(), {int(number)})", tmp_path)
    out, errors = process.communicate()
    assert process.returncode == code
    assert said in json.loads(out)["error"]
    assert said in errors.decode()


WAITS = (
    "pathlib.Path('pid').write_text(str(os.getpid())); "
    "[signal.sigtimedwait([], 0.1) for _ in iter(int, 1)]"
)
"""Wait endlessly in short turns: `signal.pause()` would miss a signal just before it."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_command_reaches_what_it_does(
    tmp_path: Path, number: signal.Signals
) -> None:
    """It cleans up and reports it, wherever the work runs."""
    process = command_that(WAITS, tmp_path)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    process.send_signal(number)
    out, _ = process.communicate()
    assert process.returncode == 130
    assert json.loads(out)["error"] == "stopped; nothing was written"


def test_a_command_that_is_killed_leaves_nobody_at_work(tmp_path: Path) -> None:
    """The child processes of a command end if the command is killed."""
    process = command_that(WAITS, tmp_path)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    process.kill()
    process.communicate()
    at_work = Path("/proc") / (tmp_path / "pid").read_text()
    wait_until(lambda: not at_work.exists() or "(zombie)" in (at_work / "status").read_text())
