"""Forked servers end, log and fail as started ones do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from cohort.system.jobs import JobRaised, run_job
from tests.e2e.fork_client import SHARED
from tests.e2e.forking import (
    FORKS,
    ForkedProcess,
    fork,
    fork_children,
    fork_servers,
    share_fork_servers,
    start_fork_servers,
)
from tests.e2e.processes import COMMAND, ROOT, cohort, quick_command
from tests.waiting import wait_until
from tests.workers.hosts import host, port_of, workers_of

pytestmark = pytest.mark.skipif(not FORKS, reason="servers are forked on Linux only")


def forked(*arguments: str, log: Path, **env: str) -> ForkedProcess:
    """Fork `cohort ARGUMENTS` with this environment alone; `log` takes both streams."""
    with log.open("wb") as file:
        return fork(arguments, cwd=log.parent, env=env, stdout=file.fileno(), stderr=file.fileno())


def test_streams_arguments_folder_and_environment_are_its_own(tmp_path: Path) -> None:
    """A forked command sees what it was given, and nothing of the process it was forked from."""
    (tmp_path / "models").mkdir()
    log = tmp_path / "log"
    process = forked("check", "models", log=log, COLUMNS="200")
    assert process.wait(60) == 1
    assert "models" in log.read_text()
    assert f"{ROOT}" not in log.read_text()


def test_exit_status_is_that_of_the_command(tmp_path: Path) -> None:
    """It is 0, or 2 for a wrong option, as in a shell; `wait` may be called again."""
    good = forked("--version", log=tmp_path / "good")
    bad = forked("serve", "--no-such-option", log=tmp_path / "bad")
    assert [good.wait(60), good.poll(), good.returncode] == [0, 0, 0]
    assert bad.wait(60) == 2
    assert "no-such-option" in (tmp_path / "bad").read_text()


def test_process_that_cannot_start_has_no_id(tmp_path: Path) -> None:
    """Its exit status is not taken for the id of a process, which a test would then kill."""
    with pytest.raises(AssertionError, match="ended 1"), (tmp_path / "log").open("wb") as file:
        fork([], cwd=tmp_path / "gone", env={}, stdout=file.fileno(), stderr=file.fileno())


def test_end_by_a_signal_is_seen(tmp_path: Path) -> None:
    """A killed server has minus the signal's number as its status, and takes no more signals."""
    with cohort(tmp_path, tmp_path, allow_empty=1) as server:
        assert isinstance(server.process, ForkedProcess)
        assert server.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.01)
        server.process.kill()
        assert server.process.wait(60) == -signal.SIGKILL
        server.process.terminate()


def test_end_is_seen_by_all_threads_that_wait(tmp_path: Path) -> None:
    """Each gets the exit status, and a poll during the wait returns at once."""
    process = forked("serve", "--port", "0", "--grpc-port", "0", log=tmp_path / "log")
    with ThreadPoolExecutor() as threads:
        waits = [threads.submit(process.wait, timeout) for timeout in (None, 60, None, 60)]
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()
        assert [wait.result() for wait in waits] == [-signal.SIGKILL] * 4


def test_arguments_and_environment_may_be_long(tmp_path: Path) -> None:
    """A message of a socket is not: its longest is about 200 KB."""
    process = forked("check", "x" * 1_000_000, log=tmp_path / "log", LONG="y" * 1_000_000)
    assert process.wait(60) == 1
    assert "x" * 100 in (tmp_path / "log").read_text()


def test_servers_end_with_the_tests(tmp_path: Path) -> None:
    """No server outlives the process that had it forked, however that ended."""
    read, write = os.pipe()
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.e2e.forking import fork\n"
        "fork(['serve', '--port', '0', '--grpc-port', '0'], cwd=Path(sys.argv[1]),\n"
        "    env={'COHORT_ALLOW_EMPTY': '1'}, stdout=int(sys.argv[2]), stderr=int(sys.argv[2]))\n"
        "os._exit(3)"
    )
    asked = [sys.executable, "-c", code, str(tmp_path), str(write)]
    assert subprocess.run(asked, cwd=ROOT, pass_fds=[write], check=False).returncode == 3
    os.close(write)
    with os.fdopen(read, "rb") as held:  # ends when the last process that has it ends
        held.read()


def test_workers_are_forked_as_they_would_be_started(tmp_path: Path) -> None:
    """They inherit no descriptors of their parent and no signal handlers."""
    with host(tmp_path, 2, tmp_path, allow_empty=1) as server:
        parent = server.process.pid
        port = f"0100007F:{port_of(server):04X}"
        sockets = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
        listener = next(f"socket:[{one[9]}]" for one in sockets if one[1] == port)
        suspend = 1 << signal.SIGTSTP - 1
        assert caught(parent) & suspend
        assert listener in opened(parent)
        assert len(workers_of(server)) == 2
        for pid in workers_of(server):
            assert not caught(pid) & suspend
            assert listener not in opened(pid)
            assert os.getpgid(pid) == pid
        assert server.stop() == 0


def caught(pid: int) -> int:
    """The signals that a process takes itself, a bit each."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16)


def opened(pid: int) -> set[str]:
    """Return the targets of a process's descriptors."""
    return {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}


def test_dropped_process_is_killed_and_no_other(tmp_path: Path) -> None:
    """No caller could end it later. The fork server continues."""
    serve = ("serve", "--port", "0", "--grpc-port", "0")
    other = forked(*serve, log=tmp_path / "other")
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        pid = forked(*serve, log=tmp_path / "dropped").pid
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), seconds=60)
    assert forked("--version", log=tmp_path / "next").wait(60) == 0
    assert other.poll() is None
    other.kill()
    assert other.wait(60) == -signal.SIGKILL


def test_stand_in_is_as_the_command(tmp_path: Path) -> None:
    """It has its arguments, folder, environment, streams and exit status."""
    seen = []
    for command in (COMMAND, quick_command()):
        done = subprocess.run(
            [*command, "check", "nowhere"],
            cwd=tmp_path,
            env={**os.environ, "COHORT_WORKERS": "many"},
            capture_output=True,
            text=True,
            check=False,
        )
        seen.append((done.returncode, done.stdout, done.stderr))
    assert seen[0] == seen[1]
    assert seen[0][0] == 2
    assert "COHORT_WORKERS" in seen[0][2]


def started_stand_in(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """One that serves, and the process that was forked for it."""
    folder.mkdir()
    process = subprocess.Popen(
        [*quick_command(), "serve", "--port", "0", "--grpc-port", "0"],
        cwd=folder,
        env={**os.environ, "COHORT_ALLOW_EMPTY": "1"},
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    while b"listening" not in (line := process.stderr.readline()):
        assert line, "it ended"
    (pid,) = in_folder(folder) - {process.pid}
    return process, pid


def in_folder(folder: Path) -> set[int]:
    """The processes that work in a folder."""
    found = set()
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if (one / "cwd").readlink() == folder:
                found.add(int(one.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stand_in_passes_signals_on(tmp_path: Path, number: signal.Signals) -> None:
    """The server ends as it would, and its exit status is the stand-in's."""
    process, pid = started_stand_in(tmp_path / "here")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not Path(f"/proc/{pid}").exists()


def test_killed_stand_in_leaves_no_process(tmp_path: Path) -> None:
    """The process that it represents is killed as well."""
    process, pid = started_stand_in(tmp_path / "here")
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), seconds=60)


def test_stand_in_ends_by_the_same_signal(tmp_path: Path) -> None:
    """A shell sees the same end as the command's."""
    process, pid = started_stand_in(tmp_path / "here")
    os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_all_end_with_their_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Tests and stand-ins are notified at once, its processes are killed, and no new one starts."""
    request.addfinalizer(fork_servers.cache_clear)
    fork_servers.cache_clear()
    folder = start_fork_servers()
    monkeypatch.setenv(SHARED, share_fork_servers(folder)[SHARED])
    process = forked("serve", "--port", "0", "--grpc-port", "0", log=tmp_path / "log")
    program, pid = started_stand_in(tmp_path / "here")
    os.kill(
        int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL
    )
    shutil.rmtree(folder)

    with pytest.raises(AssertionError, match="the fork server has ended"):
        process.wait(60)
    assert process.poll() == -signal.SIGKILL
    with pytest.raises(AssertionError, match="the fork server has ended"):
        forked("--version", log=tmp_path / "next")

    _, said = program.communicate(timeout=60)
    assert (program.returncode, b"the fork server has ended" in said) == (1, True)
    late = subprocess.run([*quick_command(), "--version"], capture_output=True, check=False)
    assert (late.returncode, b"the fork server has ended" in late.stderr) == (1, True)
    ended = [Path(f"/proc/{one}") for one in (process.pid, pid)]
    wait_until(lambda: not any(one.exists() for one in ended), seconds=60)


def test_another_working_copy_has_fork_servers_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Its code is what they import; tests run the tests of copies."""
    request.addfinalizer(fork_servers.cache_clear)
    for root, shared in ((ROOT, True), (tmp_path, False)):
        fork_servers.cache_clear()
        monkeypatch.setenv(SHARED, f"{root}{os.pathsep}{tmp_path}")
        assert (fork_servers() == tmp_path) is shared


def test_children_are_forked_as_they_would_be_started() -> None:
    """The parent gets the same failure and output from a forked child as from a started one."""
    said = {}
    for name in ("started", "forked"):
        with (
            fork_children() if name == "forked" else nullcontext(),
            pytest.raises(JobRaised) as got,
        ):
            run_job("cohort_prepare.optimizing.tasks:check_original", {"path": "", "cases": ""})
        said[name] = (got.value.sentence, got.value.kinds, got.value.printed.splitlines()[-1])
    assert said["forked"] == said["started"]
    assert said["forked"][0] == "Misused: . is not a file"
