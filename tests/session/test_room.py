"""Memory for opening models."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cohort.errors import LoadFailed
from cohort.session import Opener, Provider
from cohort.session.room import Room, free_memory
from tests import onnx_models
from tests.system.proc_files import make_files, mountinfo
from tests.waiting import PATIENCE

MIB = 1 << 20


def test_what_cannot_fit_is_refused_with_numbers() -> None:
    """A model that fits exactly is not refused."""
    room = Room(lambda: (100 * MIB, 4096 * MIB))
    with room.take(100 * MIB):
        pass
    refused = r"about 101 MiB, but only 100 MiB of 4,096 MiB are free"
    with pytest.raises(LoadFailed, match=refused), room.take(101 * MIB):
        pass


def test_loads_wait_for_each_other_where_memory_is_short() -> None:
    """Together they would not fit; one after the other they do."""
    room = Room(lambda: (100, 100))
    waiting, done = threading.Event(), threading.Event()

    def second() -> None:
        with room.take(60, waiting.set):
            done.set()

    thread = threading.Thread(target=second)
    with room.take(60):
        thread.start()
        assert waiting.wait(PATIENCE)
        assert not done.is_set()
    thread.join(PATIENCE)
    assert done.is_set()


def test_what_was_granted_since_the_last_look_counts() -> None:
    """Many small ones are not checked one by one, and are not too many together."""
    looks: list[int] = []

    def look() -> tuple[int, int]:
        looks.append(1)
        return 1000, 1000

    room = Room(look)
    with room.take(400), room.take(400):
        assert room.fits(200)
        assert not room.fits(201)
    assert room.fits(1000)
    assert len(looks) < 5


def test_load_that_waits_can_be_ended() -> None:
    """A wait ends when its check raises, and no memory stays taken."""
    room = Room(lambda: (100, 100))

    def check() -> None:
        raise InterruptedError

    with room.take(60), pytest.raises(InterruptedError), room.take(60, check):
        pass
    with room.take(100):
        pass


def test_what_was_measured_counts_more_than_the_size(tmp_path: Path) -> None:
    """A model whose inspection took more memory than its file is refused if that is too much."""
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx")
    opener = Opener(path, chain=(Provider("cpu"),), room=Room(lambda: (MIB, 2 * MIB)))
    opener.open().close()
    opener.peak = 3 * MIB
    with pytest.raises(LoadFailed, match=r"about 3 MiB, .* 1 MiB of 2 MiB"):
        opener.open()


PLENTY = "MemTotal: 9000000000 kB\nMemAvailable: 8000000000 kB\n"


@pytest.mark.parametrize(
    ("cgroups", "files", "free"),
    [
        ("0::/", {}, 8_000_000_000 << 10),
        (
            "0::/",
            {"memory.max": "max", "memory.current": "5", "memory.stat": "inactive_file 1"},
            8_000_000_000 << 10,
        ),
        (
            "0::/",
            {"memory.max": "1000", "memory.current": "700", "memory.stat": "inactive_file 50"},
            350,
        ),
        (
            "0::/system.slice/cohort.service",
            {
                "system.slice/cohort.service/memory.max": "1000",
                "system.slice/cohort.service/memory.current": "100",
                "system.slice/cohort.service/memory.stat": "anon 1\ninactive_file 0",
                "system.slice/memory.max": "900",
                "system.slice/memory.current": "800",
                "system.slice/memory.stat": "inactive_file 0",
            },
            100,
        ),
        (
            "4:memory:/docker/0f\n1:cpu:/\n0::/",  # as the machine has it, without its folder here
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "900",
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 100",
            },
            200,
        ),
    ],
)
def test_the_narrowest_limit_counts(
    tmp_path: Path, cgroups: str, files: dict[str, str], free: int
) -> None:
    """The limits are those of the machine and of all cgroups around the process, v1 and v2."""
    make_files(tmp_path / "cgroup", files)
    mounts = mountinfo(tmp_path / "cgroup")
    told = {"meminfo": PLENTY, "self/cgroup": cgroups, "self/mountinfo": mounts}
    assert free_memory(make_files(tmp_path / "proc", told))[0] == free


def test_this_machine_has_memory() -> None:
    """The figure is read from the real files."""
    free, limit = free_memory()
    assert 0 < free <= limit
