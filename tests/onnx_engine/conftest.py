from __future__ import annotations

from pathlib import Path

import pytest

from tests.registry.on_disk import RegistryOnDisk


@pytest.fixture
def disk(tmp_path: Path) -> RegistryOnDisk:
    """A registry over an empty folder."""
    (tmp_path / "models").mkdir()
    return RegistryOnDisk(tmp_path / "models")
