"""An S3-compatible server for all tests of this folder, and a bucket for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.remote.servers import Bucket, S3Server, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real server that speaks S3."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, which this process may use."""
    made = s3.bucket()
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made
