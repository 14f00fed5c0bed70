"""One server with the bundled models for all tests that only ask it things."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import MODELS, Cohort, cohort


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """The bundled models, served by a real process."""
    with cohort(MODELS, tmp_path_factory.mktemp("bundled")) as server:
        yield server


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """An empty models folder."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder
