"""The cores and the memory that limits leave."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cohort.system.cgroups import Cgroup, cgroups
from cohort.system.processor import available_memory, cpu_limit, machine_memory
from tests.system.proc_files import make_files, mountinfo

UNIT = "system.slice/cohort.service"


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


def proc(folder: Path, told: str, files: dict[str, str], *, root: str = "/") -> Path:
    """Return a /proc that names groups, the files of which are in a folder."""
    groups = make_files(folder / "my groups", files)
    wanted = {"self/cgroup": told, "self/mountinfo": mountinfo(groups, root)}
    return make_files(folder / "proc", wanted)


@pytest.mark.parametrize(
    ("told", "files", "limit"),
    [
        ("0::/", {}, 16.0),
        ("0::/", {"cpu.max": "max 100000"}, 16.0),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        (f"0::/{UNIT}", {f"{UNIT}/cpu.max": "50000 100000"}, 0.5),
        (
            f"0::/{UNIT}",
            {f"{UNIT}/cpu.max": "300000 100000", "system.slice/cpu.max": "200000 100000"},
            2.0,
        ),
        ("0::/", {f"{UNIT}/cpu.max": "50000 100000"}, 16.0),
        (
            f"4:memory:/\n1:cpuacct,cpu:/{UNIT}\n0::/",
            {
                f"cpu,cpuacct/{UNIT}/cpu.cfs_quota_us": "250000\n",
                f"cpu,cpuacct/{UNIT}/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        ("0::/", {"cpu.max": "3200000 100000"}, 16.0),
        ("0::/../outside", {"cpu.max": "100000 100000"}, 1.0),
    ],
)
def test_the_narrowest_quota_counts(
    tmp_path: Path, told: str, files: dict[str, str], limit: float
) -> None:
    """The limits are quotas of the process's groups, v1 and v2, and its affinity."""
    assert cpu_limit(proc(tmp_path, told, files)) == limit


@pytest.mark.parametrize(
    ("told", "files", "limit"),
    [
        (f"0::/{UNIT}", {f"{UNIT}/memory.max": "400000000"}, 400_000_000),
        (
            f"0::/{UNIT}",
            {f"{UNIT}/memory.max": "400000000", "system.slice/memory.max": "300000000"},
            300_000_000,
        ),
        (
            f"7:memory:/{UNIT}\n0::/",
            {
                f"memory/{UNIT}/memory.limit_in_bytes": "200000000",
                "memory/memory.limit_in_bytes": "9223372036854771712",
            },
            200_000_000,
        ),
        ("0::/", {"memory.max": "max"}, None),
    ],
)
def test_the_narrowest_limit_of_memory_counts(
    tmp_path: Path, told: str, files: dict[str, str], limit: int | None
) -> None:
    """systemd's MemoryMax= writes such limits, nested or not."""
    expected = machine_memory() if limit is None else limit
    assert available_memory(proc(tmp_path, told, files)) == expected


@pytest.mark.parametrize("told", ["0::/docker/0f/inner", "0::/inner"])
def test_a_container_may_tell_paths_of_the_host(tmp_path: Path, told: str) -> None:
    """Its own group is what is mounted, whether it has a namespace of groups or not."""
    root = "/docker/0f" if "docker" in told else "/"
    there = proc(tmp_path, told, {"inner/cpu.max": "50000 100000"}, root=root)
    found = [group for group in cgroups("cpu", there) if group.version == 2]
    folder = tmp_path / "my groups"
    assert found == [Cgroup(folder / "inner", 2), Cgroup(folder, 2)]
    assert cpu_limit(there) == 0.5


def test_a_path_that_is_not_mounted_leaves_what_is(tmp_path: Path) -> None:
    """In a container with v1 the path is the host's, and the mount is the container's own."""
    files = {"memory/memory.limit_in_bytes": "1000000"}
    assert available_memory(proc(tmp_path, "4:memory:/docker/0f", files)) == 1_000_000


def test_without_proc_the_machine_is_what_there_is(tmp_path: Path) -> None:
    """macOS has no /proc."""
    assert cpu_limit(tmp_path) == 16.0
    assert available_memory(tmp_path) == machine_memory()


def test_a_limit_of_address_space_counts() -> None:
    """`ulimit -v` sets it; another process tries it."""
    asked = "from cohort.system.processor import available_memory; print(available_memory())"
    most = 1 << 32
    done = subprocess.run(
        [sys.executable, "-c", asked],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) <= most
