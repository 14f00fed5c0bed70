"""From `cohort publish` through a bucket to a server, each a real process."""

from __future__ import annotations

import json
from pathlib import Path
from signal import SIGHUP
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from app.cli import cli
from tests import onnx_models
from tests.e2e.processes import cohort
from tests.remote.servers import Bucket
from tests.remote.test_serving import version
from tests.signed import OURS, THEIRS, trust
from tests.waiting import wait_until


def publish(model: Path, bucket: Bucket, key: Path, code: int = 0) -> dict[str, Any]:
    """What the command printed."""
    arguments = ["publish", str(model), "--name", "times", "--to", bucket.url]
    done = CliRunner().invoke(cli, [*arguments, "--sign", str(key), "--json"])
    assert done.exit_code == code, done.output
    return dict(json.loads(done.stdout))


def test_signed_versions_go_through_a_bucket_and_no_others(bucket: Bucket, tmp_path: Path) -> None:
    """Each publishing is a version once; what is changed in the bucket, or is another's, waits."""
    keys = {"ours": OURS, "theirs": THEIRS}
    for name, key in keys.items():
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / name).write_bytes(pem)
    trust(tmp_path / "trusted.pem", OURS)
    models = {
        factor: onnx_models.save(onnx_models.times(factor), tmp_path / f"{factor}.onnx")
        for factor in (2.0, 3.0, 4.0, 5.0)
    }
    first = publish(models[2.0], bucket, tmp_path / "ours")
    assert (first["version"], first["place"]) == (1, f"{bucket.url}/times/1")
    again = publish(models[2.0], bucket, tmp_path / "ours")
    assert (again["version"], again["already"]) == (1, True)
    with cohort(
        bucket.url, tmp_path, inspection_seconds=0, trusted_keys=tmp_path / "trusted.pem"
    ) as server:
        assert version(server) == "1"
        assert publish(models[3.0], bucket, tmp_path / "ours")["version"] == 2
        server.process.send_signal(SIGHUP)
        wait_until(lambda: version(server) == "2")

        assert publish(models[4.0], bucket, tmp_path / "theirs")["version"] == 3
        server.process.send_signal(SIGHUP)
        wait_until(lambda: "does not have" in server.get("/models/times/versions/3").text)

        assert publish(models[5.0], bucket, tmp_path / "ours")["version"] == 4
        altered = bytearray(models[5.0].read_bytes())
        altered[-20] ^= 1
        bucket.put("times/4/model.onnx", bytes(altered))
        server.process.send_signal(SIGHUP)
        wait_until(lambda: "not the file that was published" in server.get("/health").text)
        assert version(server) == "2"


def test_who_may_not_write_is_told(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sentence, exit 2, and nothing is there."""
    model = onnx_models.save(onnx_models.times(2.0), tmp_path / "model.onnx")
    pem = OURS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key").write_bytes(pem)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    told = publish(model, bucket, tmp_path / "key", code=2)
    assert f"--to {bucket.url}: {bucket.url} cannot be reached" in told["error"]
    assert bucket.paths == []
