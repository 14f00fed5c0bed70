"""Putting versions into a bucket at a real S3-compatible server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cohort.errors import ModelNotFound, RemoteFailed
from cohort.remote import Mirror, upload_version
from tests.e2e.processes import ROOT
from tests.remote.servers import Bucket, network
from tests.waiting import PATIENCE


@pytest.fixture
def version(tmp_path: Path) -> Mapping[str, Path]:
    """The files of a version, as `publish` makes them."""
    contents = {"manifest.json": b"{}", "model.onnx": b"model" * 1000, "assets/words.txt": b"words"}
    for path, content in contents.items():
        file = tmp_path / "version" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return {path: tmp_path / "version" / path for path in contents}


def test_versions_are_numbered_one_after_the_other(
    bucket: Bucket, version: Mapping[str, Path]
) -> None:
    """It is the next number after all versions, whole or not; the sent bytes are reported."""
    sent: list[int] = []
    assert upload_version(bucket.url, "m", version, sent=sent.append) == 1
    assert sum(sent) == sum(file.stat().st_size for file in version.values())
    bucket.put("m/7/manifest.json", b"{}")
    assert upload_version(bucket.url, "m", version) == 8
    assert upload_version(bucket.url, "other", version) == 1
    assert [path for path in bucket.paths if path.startswith("m/8/")] == [
        "m/8/assets/words.txt",
        "m/8/manifest.json",
        "m/8/model.onnx",
    ]


def test_publishers_at_once_get_numbers_of_their_own(
    bucket: Bucket, version: Mapping[str, Path]
) -> None:
    """The first publisher to write the manifest has the number; the others take the next ones."""
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: upload_version(bucket.url, "m", version), range(8)))
    assert sorted(numbers) == list(range(1, 9))


@pytest.mark.parametrize("key", ["m/7/../evil", "m/../evil", "../evil"])
def test_hostile_key_does_not_hold_up_a_publisher(
    bucket: Bucket, version: Mapping[str, Path], key: str
) -> None:
    """The number is above all there are, that of a version that cannot be listed included."""
    bucket.put("m/6/model.onnx", b"6")
    bucket.put(key, b"evil")
    assert upload_version(bucket.url, "m", version) == (8 if "7" in key else 7)


def test_model_that_cannot_be_listed_takes_no_version(
    bucket: Bucket, version: Mapping[str, Path]
) -> None:
    """Its next number is unknown; the error names the key to delete."""
    for key in ("m/6/model.onnx", "m/../evil", "m/6/../evil"):
        bucket.put(key, b"evil")
    with pytest.raises(RemoteFailed, match=r"the bucket has the key 'models/m/\.\./"):
        upload_version(bucket.url, "m", version)


def test_publisher_that_fails_leaves_nothing(
    bucket: Bucket, version: Mapping[str, Path], tmp_path: Path
) -> None:
    """What was uploaded is deleted where the rest cannot be; the number is free again."""
    version = {**version, "weights.bin": tmp_path / "missing"}
    with pytest.raises(RemoteFailed):
        upload_version(bucket.url, "m", version)
    assert not bucket.paths


def test_publisher_that_dies_leaves_nothing_that_is_served(
    bucket: Bucket, version: Mapping[str, Path], tmp_path: Path
) -> None:
    """Killed between two files, it has claimed a number under which nothing counts."""
    version["assets/words.txt"].write_bytes(os.urandom(8 << 20))
    program = (
        "import sys; from pathlib import Path; from cohort.remote import upload_version\n"
        "files = {p: Path(sys.argv[2]) / p for p in sys.argv[3:]}\n"
        "upload_version(sys.argv[1], 'm', files)"
    )
    with network(int(bucket.endpoint.rpartition(":")[2])) as between:
        between.hold_requests_after = 1 << 20
        process = subprocess.Popen(
            [sys.executable, "-c", program, bucket.url, str(tmp_path / "version"), *version],
            cwd=ROOT,
            env={**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{between.port}"},
        )
        assert between.holding.wait(PATIENCE)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert bucket.paths == ["m/1/manifest.json"]
    mirror = Mirror(bucket.url, tmp_path / "mirror", quiet=0)
    mirror.sync()
    assert mirror.wait(PATIENCE)
    mirror.close()
    assert not list(mirror.models.rglob("*"))
    version["assets/words.txt"].write_bytes(b"words")
    assert upload_version(bucket.url, "m", version) == 2


def test_what_cannot_be_published_is_told(version: Mapping[str, Path]) -> None:
    """A web server, a name that is none, and files without a model are refused at once."""
    with pytest.raises(RemoteFailed, match="publish to a folder, or to s3://"):
        upload_version("https://example.com/models", "m", version)
    with pytest.raises(ModelNotFound):
        upload_version("s3://bucket/models", "../m", version)
    with pytest.raises(ValueError, match=r"model\.onnx is not among the files"):
        upload_version("s3://bucket/models", "m", {"manifest.json": version["manifest.json"]})
