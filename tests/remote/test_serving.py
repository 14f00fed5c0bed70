"""A server whose models are in a bucket, each a real process."""

from __future__ import annotations

from pathlib import Path
from signal import SIGHUP

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.remote.servers import Bucket, s3_server
from tests.waiting import wait_until


def put_model(bucket: Bucket, folder: Path, number: int, factor: float) -> None:
    """Put a version of `times` there, which multiplies by `factor`."""
    path = onnx_models.save(onnx_models.times(factor), folder / f"{number}.onnx")
    bucket.put(f"times/{number}/model.onnx", path)


def version(server: Cohort) -> str:
    """The version that answers."""
    body = {"inputs": {"x": [[1.0, 1.0, 1.0]]}}
    answer = httpx.post(f"{server.url}/models/times/predict", json=body).json()
    return str(answer.get("version"))


def test_bucket_is_served_followed_and_outlived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version takes over; an end of the bucket's server ends nothing; a restart serves."""
    with s3_server(tmp_path) as s3:
        bucket = s3.bucket()
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        put_model(bucket, tmp_path, 1, 2.0)
        with cohort(bucket.url, tmp_path) as server:
            assert version(server) == "1"
            put_model(bucket, tmp_path, 2, 3.0)
            server.process.send_signal(SIGHUP)
            wait_until(lambda: version(server) == "2")
            s3.process.kill()
            server.process.send_signal(SIGHUP)
            wait_until(lambda: "cannot be reached" in server.get("/health").text)
            assert version(server) == "2"
            assert "remote_repository_up 0.0" in server.get("/metrics").text
            assert server.get("/health/ready").status_code == 200
            assert server.stop() == 0
    with cohort(bucket.url, tmp_path) as server:
        assert version(server) == "2"
        assert "cannot be reached" in server.get("/health").text
