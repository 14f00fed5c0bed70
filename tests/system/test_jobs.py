"""Jobs in child processes: answers, failures, limits, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cohort.system.jobs import (
    JobCrashed,
    JobLimits,
    JobOutOfMemory,
    JobProcess,
    JobRaised,
    JobTimedOut,
    bare_environment,
    run_job,
)
from tests.waiting import PATIENCE, wait_until

JOBS = "tests.system.some_jobs"
ENOUGH = JobLimits(seconds=PATIENCE)


def done(name: str, limits: JobLimits | None = None, **arguments: object) -> object:
    """Return the answer of a job of `some_jobs`."""
    return run_job(f"{JOBS}:{name}", arguments, limits=limits or JobLimits())


def runs(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ids_in(file: Path) -> list[int]:
    """Return the ids of processes that a job wrote, once they are there."""
    wait_until(lambda: file.exists() and file.read_text().endswith(" "))
    return [int(one) for one in file.read_text().split()]


def test_a_process_does_several_jobs() -> None:
    """Reports come first; printed text is kept separate from answers."""
    told: list[object] = []
    with JobProcess("test") as process:
        for value in ({"a": [1, None, "ü"]}, 2.5):
            assert process.do(f"{JOBS}:echo", {"value": value}, on_message=told.append) == value
            printed = process.printed
            assert sorted(printed.split("\n")) == sorted(
                ["", '{"answer": "printed"}', "complained", "written"]
            )
    assert told == [1, 2]


def test_answers_arguments_and_what_is_printed_may_be_long() -> None:
    """No stream waits for another; the end of the printed text is kept."""
    with JobProcess("test") as process:
        answer = process.do(f"{JOBS}:long", {"length": 20_000_000})
        assert len(answer) == 20_000_000
        assert 0 < len(process.printed) <= 1 << 16
        text = "z" * 20_000_000
        assert process.do(f"{JOBS}:echo", {"value": text}) == text


def test_answer_that_is_too_long_is_a_failure() -> None:
    """It is not kept in memory without end."""
    for name, arguments in (("long", {"length": (1 << 26) + (1 << 22)}), ("flood", {})):
        with JobProcess("test") as process:
            with pytest.raises(JobCrashed, match="too long"):
                process.do(f"{JOBS}:{name}", arguments)
            with pytest.raises(JobCrashed):  # which does nothing more
                process.do(f"{JOBS}:echo", {"value": 1})


def test_a_job_gets_no_answer_of_another() -> None:
    """Answers of a forked process, or written by the job itself, do not count."""
    with JobProcess("test") as process:
        for value in range(3):
            given = process.do(f"{JOBS}:come_back_twice", {"value": value}, limits=ENOUGH)
            assert given == value
        assert process.do(f"{JOBS}:answer_for_another", {}) is None
        assert process.do(f"{JOBS}:echo", {"value": "own"}) == "own"


def test_what_else_is_printed_to_the_pipe_is_no_answer(tmp_path: Path) -> None:
    """Python may print at its start, even without an end of line."""
    (tmp_path / "sitecustomize.py").write_text(
        'import os\nos.write(1, b\'[]\\n\\xff\\n{"answer\\n{"else": 1}\\n{"answer": 1\')\n'
    )
    environment = bare_environment()
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    assert run_job(f"{JOBS}:long", {"length": 2}, environment=environment) == "yy"


def test_a_job_has_no_standard_input() -> None:
    """It cannot take the next job's place."""
    assert done("read") == ""


def test_exception_is_told_with_its_classes() -> None:
    """The same process does the next job."""
    with JobProcess("test") as process:
        with pytest.raises(JobRaised, match="no such\nthing") as raised:
            process.do(f"{JOBS}:fail", {"kind": "value"})
        assert raised.value.is_a(ValueError)
        assert raised.value.is_a(Exception)
        assert not raised.value.is_a(OSError)
        assert raised.value.sentence == "ValueError: no such thing"
        assert raised.value.last_lines.endswith("thing")
        with pytest.raises(JobRaised) as raised:
            process.do(f"{JOBS}:fail", {"kind": "disk"})
        assert (raised.value.is_a(OSError), raised.value.number) == (True, 28)
        for name in ("unanswerable", "missing"):
            with pytest.raises(JobRaised):
                process.do(f"{JOBS}:{name}", {})
        assert process.do(f"{JOBS}:echo", {"value": 1}) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_crash_is_told_with_its_signal(number: signal.Signals) -> None:
    """The error includes the end of the printed text."""
    with pytest.raises(JobCrashed, match=f"the process was ended by {number.name}") as raised:
        done("end_by", number=number)
    assert raised.value.signal == number
    assert raised.value.last_lines == "the last word"


def test_exit_is_told_with_its_status() -> None:
    """A process that passes a signal on, as uv does, is reported with that signal."""
    for status, number in ((3, None), (139, signal.SIGSEGV)):
        said = "status 3" if number is None else "SIGSEGV"
        with pytest.raises(JobCrashed, match=said) as raised:
            done("leave", status=status)
        assert raised.value.signal == number


def test_process_that_closes_its_pipes_has_crashed() -> None:
    """The process itself continues."""
    with pytest.raises(JobCrashed, match="SIGKILL"):
        done("close_answers")


def test_process_that_cannot_be_started_is_an_os_error(tmp_path: Path) -> None:
    """Any other command raises it as well."""
    with pytest.raises(FileNotFoundError):
        run_job(f"{JOBS}:read", {}, python=[str(tmp_path / "python")])


@pytest.mark.skipif(sys.platform != "linux", reason="Linux limits what a process takes")
def test_memory_is_limited() -> None:
    """The limit is on top of the process's own memory; a job that takes less is done."""
    limits = JobLimits(memory=64 << 20)
    assert done("take", limits, megabytes=8) == 8 << 20
    with pytest.raises(JobOutOfMemory):
        done("take", limits, megabytes=128)


def test_cpu_time_is_limited() -> None:
    """The system limits it."""
    with pytest.raises(JobTimedOut, match="SIGXCPU"):
        done("spin", JobLimits(cpu_seconds=1))


def test_time_is_limited(tmp_path: Path) -> None:
    """The process is killed, and what it started; the caller may change how long it has."""
    file = tmp_path / "ids"
    arguments = {"file": str(file), "holds_lock": True}
    limits = JobLimits(seconds=PATIENCE)
    with JobProcess("test") as process, pytest.raises(JobTimedOut):
        process.do(f"{JOBS}:wait", arguments, limits=limits, on_message=process.allow)
    wait_until(lambda: not any(map(runs, ids_in(file))))


def test_time_is_limited_for_a_job_that_prints_without_end() -> None:
    """The parent does not read indefinitely."""
    with pytest.raises(JobTimedOut):
        done("babble", JobLimits(seconds=0.5))


def test_a_confined_process_writes_nothing_and_gives_way(tmp_path: Path) -> None:
    """It may read files that others wrote."""
    for confined in (True, False):
        limits = JobLimits(confined=confined, nice=7)
        answer = run_job(f"{JOBS}:niceness", {}, cwd=tmp_path, limits=limits)
        assert (answer == [7, "File too large"]) is confined


def test_what_a_job_started_ends_with_it(tmp_path: Path) -> None:
    """It ends even if it holds the pipes after a crash."""
    with pytest.raises(JobCrashed, match="SIGSEGV"):
        done("crash_beside", file=str(tmp_path / "ids"))
    wait_until(lambda: not any(map(runs, ids_in(tmp_path / "ids"))))


def test_a_job_can_be_cancelled(tmp_path: Path) -> None:
    """Another thread can cancel it, with all its processes."""
    file = tmp_path / "ids"
    with JobProcess("test") as process, ThreadPoolExecutor(1) as pool:
        arguments = {"file": str(file), "holds_lock": False}
        job = pool.submit(process.do, f"{JOBS}:wait", arguments)
        pids = ids_in(file)
        process.kill()
        with pytest.raises(JobCrashed, match="SIGKILL"):
            job.result(PATIENCE)
        wait_until(lambda: not any(map(runs, pids)))
        process.kill()
    process.kill()


def test_what_the_caller_does_with_what_is_told_may_end_the_job() -> None:
    """The process does not outlive it."""
    with pytest.raises(ZeroDivisionError), JobProcess("test") as process:
        process.do(f"{JOBS}:echo", {"value": 1}, on_message=lambda message: message / 0)


@pytest.mark.parametrize("holds_lock", [False, True])
def test_a_job_ends_with_the_process_that_wants_it(tmp_path: Path, holds_lock: bool) -> None:
    """It and its processes end however the parent ends, and whatever the job does."""
    file = tmp_path / "ids"
    code = (
        "import sys\nfrom cohort.system.jobs import run_job\n"
        f"run_job('{JOBS}:wait', dict(file=sys.argv[1], holds_lock={holds_lock}))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(file)])
    pids = ids_in(file)
    assert all(map(runs, pids))
    parent.kill()
    parent.wait(PATIENCE)
    wait_until(lambda: not any(map(runs, pids)))


def test_a_job_knows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable of its bare environment is named."""
    monkeypatch.setenv("COHORT_ADMIN_TOKEN", "secret")
    monkeypatch.setenv("LC_ALL", "C")
    assert "secret" not in bare_environment().values()
    assert bare_environment()["LC_ALL"] == "C"


def test_an_answer_that_is_too_deep_is_a_failure() -> None:
    """It can be written where little is on the stack; to read it fails at once, not in time."""

    def asked(frames: int) -> object:
        return done("deep", levels=900) if not frames else asked(frames - 1)

    with pytest.raises(JobRaised, match="too deep") as raised:
        asked(200)
    assert raised.value.is_a(RecursionError)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says who has started whom")
def test_what_a_job_started_in_a_session_of_its_own_ends_with_it(tmp_path: Path) -> None:
    """It is in no group of the job's."""
    file = tmp_path / "ids"
    with pytest.raises(JobTimedOut):
        done("start_apart", JobLimits(seconds=3), file=str(file))
    wait_until(lambda: not any(map(runs, ids_in(file))))
