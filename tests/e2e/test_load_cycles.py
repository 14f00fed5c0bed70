"""Loading and unloading, again and again: nothing of a version stays behind."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import httpx

from tests import onnx_models
from tests.e2e.processes import cohort

CYCLES = 100


class Held(NamedTuple):
    """What a process holds."""

    threads: int
    descriptors: int
    megabytes: float


def held(pid: int) -> Held:
    """What the process holds now; memory is what is in its address space and present."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    threads, descriptors = (len(list((folder / name).iterdir())) for name in ("task", "fd"))
    return Held(threads, descriptors, pages * 4096 / 2**20)


def test_a_hundred_loads_and_unloads_leave_nothing(models: Path, tmp_path: Path) -> None:
    """Descriptors are as many as before, memory is within 5 % of what it was, threads are not more.

    But for one or two of an executor, which starts them when it first needs them.
    """
    onnx_models.save_with_external_data(onnx_models.mlp(hidden=512), models / "m/1/model.onnx")
    with (
        cohort(models, tmp_path, admin_token="secret", watch_seconds=0) as server,
        httpx.Client(
            base_url=server.url, headers={"authorization": "Bearer secret"}, timeout=60
        ) as client,
    ):

        def cycle() -> None:
            for action, serving in (("unload", None), ("load", "1")):
                answer = client.post(f"/admin/models/m/{action}")
                assert answer.json()["default_version"] == serving, answer.text

        for _ in range(3):
            cycle()
        before = held(server.process.pid)
        for _ in range(CYCLES):
            cycle()
        after = held(server.process.pid)
        assert client.get("/health/ready").is_success
    assert after.threads <= before.threads + 2
    assert after.descriptors == before.descriptors
    assert after.megabytes < before.megabytes * 1.05
