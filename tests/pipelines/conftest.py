"""A registry of models and pipelines for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.graphs import Graphs


@pytest.fixture
def graphs(tmp_path: Path) -> Iterator[Graphs]:
    found = Graphs(tmp_path / "models")
    yield found
    found.close()
