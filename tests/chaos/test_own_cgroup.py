"""A server in a control group that has limits, as systemd's MemoryMax= and CPUQuota= make it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from cohort.process.resources import PROCESS_BYTES
from cohort.system.cgroups import Cgroup, cgroups
from tests.chaos.callers import put
from tests.e2e.processes import MODELS, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import PATIENCE

MEMORY = 400_000_000

LIMITS = {
    ("memory", 2): {"memory.max": str(MEMORY)},
    ("memory", 1): {"memory.limit_in_bytes": str(MEMORY)},
    ("cpu", 2): {"cpu.max": "50000 100000"},
    ("cpu", 1): {"cpu.cfs_quota_us": "50000"},
}


@pytest.fixture
def groups(request: pytest.FixtureRequest) -> Iterator[list[Path]]:
    """New groups inside those of this process, with limits; skipped if they cannot be made."""
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


def _enter(groups: list[Path]) -> tuple[str, ...]:
    entered = "; ".join(f"echo $$ > '{folder}/cgroup.procs'" for folder in groups)
    return ("sh", "-c", f'{entered}; exec "$@"', "sh")


def test_the_limits_of_its_own_group_are_seen(
    groups: list[Path], tmp_path: Path, cache: Path
) -> None:
    """The server uses half a core, and a quarter of the memory that its group leaves it."""
    put(tmp_path / "models")
    with cohort(tmp_path / "models", tmp_path, under=_enter(groups), cache=cache) as server:
        scrape = Scrape(server.url)
        assert scrape.value("process_cpu_cores") == 0.5
        budget = scrape.value("memory_budget_bytes")
        most = (MEMORY - PROCESS_BYTES) // 4
        assert most - 4096 <= budget <= most
        assert server.stop() == 0


def test_callers_who_bring_more_than_there_is_room_for_are_refused(
    groups: list[Path], tmp_path: Path, cache: Path
) -> None:
    """Eight bodies of 45 MB at once, whose answers are as large, end no process of 400 MB."""
    body = b'{"input": [' + b"[1.5,2.5,1,1]," * 3_400_000 + b"[1,2,1,1]]}"

    def predict(_: int) -> int:
        with suppress(httpx.TransportError):  # refused before all was sent
            return httpx.post(
                server.url + "/models/iris/predict", content=body, timeout=PATIENCE
            ).status_code
        return 429

    with cohort(MODELS, tmp_path, under=_enter(groups), cache=cache) as server:
        with ThreadPoolExecutor(8) as callers:
            answered = set(callers.map(predict, range(8)))
        assert answered <= {400, 429}
        assert server.get("/health/ready").status_code == 200
        assert server.stop() == 0
