"""Fixtures that the faults share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for those whose fault is elsewhere: the models are profiled once."""
    return tmp_path_factory.mktemp("cache")
