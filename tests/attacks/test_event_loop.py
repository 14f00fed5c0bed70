"""What would hold the event loop: while it goes on, others are answered."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import httpx

from tests import onnx_models
from tests.e2e.processes import cohort
from tests.pipes import fill
from tests.waiting import wait_until

REFUSED = 3000


def test_blocked_standard_error_stops_nothing(tmp_path: Path) -> None:
    """Thousands are refused while nobody reads the log; it goes on when somebody does again."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.identity(), models / "same" / "1" / "model.onnx")
    reading, writing = os.pipe()
    lines: list[dict[str, object]] = []
    may_read = threading.Event()
    may_read.set()

    def read() -> None:
        with os.fdopen(reading, "rb") as pipe:
            while line := pipe.readline():
                if line.strip():
                    lines.append(json.loads(line))
                may_read.wait()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with cohort(models, tmp_path, stderr=writing) as server, httpx.Client() as client:
        wait_until(lambda: any(one["event"] == "first models loaded" for one in lines))
        may_read.clear()
        fill(writing, b"\n")
        for number in range(REFUSED):
            path = ("/predict", "/v2/models/same/infer", "/v1/models/same:predict")[number % 3]
            assert client.post(server.url + path, content=b"{").status_code == 400
        assert client.get(server.url + "/health/live").status_code == 200
        before = len(lines)
        may_read.set()
        assert (
            client.post(
                server.url + "/models/unknown/predict", content=b'{"input": [1]}'
            ).status_code
            == 404
        )
        wait_until(lambda: any(one.get("code") == "ModelNotFound" for one in lines[before:]))
        assert server.stop() == 0
        os.close(writing)
        reader.join()
    assert lines[-1]["event"] == "stopped"
