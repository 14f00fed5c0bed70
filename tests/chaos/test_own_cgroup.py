"""A server in a control group that has limits, as systemd's MemoryMax= and CPUQuota= make it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.system.cgroups import Cgroup, cgroups
from tests.chaos.callers import put
from tests.e2e.processes import cohort
from tests.e2e.scrape import Scrape

MEMORY = 800_000_000

LIMITS = {
    ("memory", 2): {"memory.max": str(MEMORY)},
    ("memory", 1): {"memory.limit_in_bytes": str(MEMORY)},
    ("cpu", 2): {"cpu.max": "50000 100000"},
    ("cpu", 1): {"cpu.cfs_quota_us": "50000"},
}


@pytest.fixture
def groups(request: pytest.FixtureRequest) -> Iterator[list[Path]]:
    """New groups inside those of this process, with limits; skipped where nobody may make them."""
    made: list[Path] = []
    try:
        for controller in ("memory", "cpu"):
            inside: Cgroup = next(cgroups(controller))
            folder = inside.folder / f"cohort-test-{id(request)}"
            if folder not in made:
                folder.mkdir()
                made.append(folder)
            for name, limit in LIMITS[controller, inside.version].items():
                (folder / name).write_text(limit)
        yield made
    except (OSError, StopIteration) as error:
        pytest.skip(f"no group can be made: {error!r}")
    finally:
        for folder in made:
            folder.rmdir()


def test_the_limits_of_its_own_group_are_seen(
    groups: list[Path], tmp_path: Path, cache: Path
) -> None:
    """Half a core and a quarter of the group's memory, not the machine's."""
    put(tmp_path / "models")
    entered = "; ".join(f"echo $$ > '{folder}/cgroup.procs'" for folder in groups)
    under = ("sh", "-c", f'{entered}; exec "$@"', "sh")
    with cohort(tmp_path / "models", tmp_path, under=under, cache=cache) as server:
        scrape = Scrape(server.url)
        assert scrape.value("process_cpu_cores") == 0.5
        budget = scrape.value("memory_budget_bytes")
        assert MEMORY // 4 - 4096 <= budget <= MEMORY // 4
        assert server.stop() == 0
