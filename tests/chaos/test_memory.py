"""Models that do not fit into the memory there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.waiting import wait_until

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextmanager
def limited(server: Cohort, mebibytes: int) -> Iterator[None]:
    """Let a server take no more than so much, from now on."""
    root, name = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V2, "memory.max")
    group = root / f"cohort-test-{server.process.pid}"
    try:
        group.mkdir()
        (group / name).write_text(str(mebibytes << 20))
        (group / "cgroup.procs").write_text(str(server.process.pid))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no cgroup with a limit of memory can be made here: {error.strerror}")
    try:
        yield
    finally:
        (root / "cgroup.procs").write_text(str(server.process.pid))
        group.rmdir()


def test_what_cannot_fit_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    """The reason has the numbers; the loaded version, which it would replace, still serves."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.table(), models / "m" / "1" / "model.onnx")
    (models / "m" / "config.yaml").write_text("providers: [cpu]\n")
    with cohort(models, tmp_path) as server, limited(server, 400):
        path = onnx_models.save_with_external_data(
            onnx_models.table(), models / "m" / "2" / "model.onnx"
        )
        os.truncate(path.with_name("weights.bin"), 500 << 20)
        server.wait_for("/models/m/versions/2")
        told = wait_until(lambda: server.get("/models/m/versions/2").json()["reason"])
        assert "opening it needs about 500 MiB, but only " in told
        assert " of 400 MiB are free" in told
        answer = httpx.post(server.url + "/models/m/predict", json={"inputs": {"index": [[2]]}})
        assert answer.json()["outputs"]["y"] == [[20]]
