"""Loading and unloading, again and again: nothing of a version stays behind."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests import onnx_models
from tests.e2e import counted
from tests.e2e.processes import Cohort, cohort
from tests.waiting import wait_until

CYCLES = 100


FEATURES = 2048
"""Inputs of the model, whose weights take 8 MB."""

MORE_MEGABYTES = 80
"""Megabytes that the cycles may add to memory: a tenth of the weights that they load."""

MORE_BLOCKS = 3000
"""Blocks that Python objects may have more after all cycles.

Up to 660 are seen, and 15,000 where the versions that were loaded are kept.
"""


class Held(NamedTuple):
    """The resources that a process holds."""

    threads: int
    descriptors: int
    megabytes: float
    blocks: int


def held(server: Cohort, file: Path) -> Held:
    """Return the resources that the process holds now; memory is its resident pages."""
    blocks = counted.blocks(server, file)
    folder = Path(f"/proc/{server.process.pid}")
    pages = int((folder / "statm").read_text().split()[1])
    threads, descriptors = (len(list((folder / name).iterdir())) for name in ("task", "fd"))
    return Held(threads, descriptors, pages * 4096 / 2**20, blocks)


def test_a_hundred_loads_and_unloads_leave_nothing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors are as many as before, memory and threads are not more.

    But for one or two of an executor, which starts them when it first needs them.
    """
    file = tmp_path / "blocks"
    monkeypatch.setenv("BLOCKS_FILE", str(file))
    model = onnx_models.mlp(features=FEATURES, hidden=1024)
    onnx_models.save_with_external_data(model, models / "m/1/model.onnx")
    with (
        cohort(
            models, tmp_path, admin_token="secret", watch_seconds=0, program=counted.PROGRAM
        ) as server,
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
        wait_until(lambda: client.get("/models/m").json()["versions"][0]["profile"]["complete"])
        before = held(server, file)
        for _ in range(CYCLES):
            cycle()
        wait_until(lambda: client.get("/models/m").json()["versions"][0]["profile"]["complete"])
        wait_until(lambda: held(server, file).descriptors == before.descriptors)
        counted.check_blocks(server, file, most=before.blocks + MORE_BLOCKS)
        after = held(server, file)
        assert client.get("/health/ready").is_success
    assert after.threads <= before.threads + 2
    assert after.megabytes - before.megabytes < MORE_MEGABYTES
