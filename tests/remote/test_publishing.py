"""From `cohort publish` through a bucket to a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from signal import SIGHUP
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from cohort.cli import cli
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, run_command
from tests.remote.servers import Bucket
from tests.signed import OURS, THEIRS, trust
from tests.waiting import wait_until


def publish(model: Path, bucket: Bucket, key: Path, code: int = 0) -> dict[str, Any]:
    """Return the output of the command, run in this process."""
    done = CliRunner().invoke(cli, arguments(model, bucket, key))
    assert done.exit_code == code, done.output
    return dict(json.loads(done.stdout))


def publish_apart(model: Path, bucket: Bucket, key: Path) -> dict[str, Any]:
    """Return its output, run as a separate process, which takes seconds."""
    done = run_command(*arguments(model, bucket, key))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def arguments(model: Path, bucket: Bucket, key: Path) -> list[str]:
    options = ["--name", "times", "--to", bucket.url, "--sign", str(key), "--json"]
    return ["publish", str(model), *options]


def answer(server: Cohort) -> tuple[str, object]:
    """Return the version that answers a row of ones, and what it answers."""
    body = {"model": "times", "inputs": {"x": [[1.0, 1.0, 1.0]]}}
    done = httpx.post(f"{server.url}/predict", json=body).json()
    return done["version"], done["outputs"]["y"]


@pytest.fixture
def models(tmp_path: Path) -> Mapping[float, Path]:
    """Models that multiply, by their factor; and keys in PEM."""
    for name, key in {"ours": OURS, "theirs": THEIRS}.items():
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / name).write_bytes(pem)
    trust(tmp_path / "trusted.pem", OURS)
    return {
        factor: onnx_models.save(onnx_models.times(factor), tmp_path / f"{factor}.onnx")
        for factor in (2.0, 3.0, 4.0, 5.0, 6.0)
    }


def flip(content: bytes, place: int) -> bytes:
    """`content` with one bit changed."""
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


def test_signed_versions_go_through_a_bucket_and_no_others(
    bucket: Bucket, models: Mapping[float, Path], tmp_path: Path
) -> None:
    """A new version takes over; one that was changed in the bucket, or is another's, does not."""
    first = publish_apart(models[2.0], bucket, tmp_path / "ours")
    assert (first["version"], first["place"]) == (1, f"{bucket.url}/times/1")
    with cohort(bucket.url, tmp_path, trusted_keys=tmp_path / "trusted.pem") as server:
        assert answer(server) == ("1", [[2.0, 2.0, 2.0]])
        assert publish(models[3.0], bucket, tmp_path / "ours")["version"] == 2
        server.process.send_signal(SIGHUP)
        wait_until(lambda: answer(server) == ("2", [[3.0, 3.0, 3.0]]))

        def told(sentence: str) -> None:
            server.process.send_signal(SIGHUP)
            wait_until(lambda: sentence in server.get("/health").text)
            assert answer(server) == ("2", [[3.0, 3.0, 3.0]])

        assert publish(models[4.0], bucket, tmp_path / "theirs")["version"] == 3
        told("COHORT_TRUSTED_KEYS does not have")

        assert publish(models[5.0], bucket, tmp_path / "ours")["version"] == 4
        bucket.put("times/4/model.onnx", flip(models[5.0].read_bytes(), -20))
        told("times/4/model.onnx is not the file that was published")

        assert publish(models[6.0], bucket, tmp_path / "ours")["version"] == 5
        bucket.put("times/5/manifest.sig", bucket.get("times/2/manifest.sig"))
        told("its signature is damaged")


def test_same_files_are_published_once_unless_they_are_damaged(
    bucket: Bucket, models: Mapping[float, Path], tmp_path: Path
) -> None:
    """The version with the same files is reported, exit 0; a damaged one does not count."""
    assert publish(models[2.0], bucket, tmp_path / "ours")["version"] == 1
    again = publish(models[2.0], bucket, tmp_path / "ours")
    assert (again["version"], again["already"]) == (1, True)
    assert not [path for path in bucket.paths if path.startswith("times/2/")]
    bucket.put("times/1/model.onnx", flip(models[2.0].read_bytes(), -20))
    mended = publish(models[2.0], bucket, tmp_path / "ours")
    assert (mended["version"], mended["already"]) == (2, False)


def test_who_may_not_write_is_told(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints a sentence, exits with 2, and leaves nothing there."""
    model = onnx_models.save(onnx_models.times(2.0), tmp_path / "model.onnx")
    pem = OURS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key").write_bytes(pem)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    told = publish(model, bucket, tmp_path / "key", code=2)
    assert f"--to {bucket.url}: {bucket.url} cannot be reached" in told["error"]
    assert bucket.paths == []
