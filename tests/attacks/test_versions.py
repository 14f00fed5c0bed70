"""Many versions: answers that list all of them delay no other caller; `bystanders` check it.

`COHORT_TEST_VERSIONS=1000` sets their number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.waiting import PATIENCE

VERSIONS = int(os.environ.get("COHORT_TEST_VERSIONS", "200"))

MAX_WAIT = 0.3
"""Seconds: it was 0.03, and would be twice this limit where the document of 200 is made at once."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """All versions of a model are wanted."""
    folder = tmp_path_factory.mktemp("versions")
    model = folder / "models" / "same"
    for version in range(1, VERSIONS + 1):
        onnx_models.save(onnx_models.identity(), model / str(version) / "model.onnx")
    (model / "config.yaml").write_text("versions: all\nproviders: [cpu]\n")
    with cohort(folder / "models", folder, watch_seconds=0) as started:
        yield started


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/openapi.json", '"/models/same/versions/{}/predict"'),
        ("/metrics", 'model_state{{model="same",state="READY",version="{}"}} 1.0'),
        ("/models", '"{}"'),
    ],
)
def test_all_versions_are_told_of(server: Cohort, path: str, told: str) -> None:
    """All are listed the first time, and again."""
    for _ in range(2):
        text = httpx.get(server.url + path, timeout=PATIENCE).raise_for_status().text
        for version in (1, VERSIONS // 2, VERSIONS):
            assert told.format(version) in text
