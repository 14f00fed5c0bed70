"""Incidents, lived through again; those marked `long` by `make incidents` alone.

Each test is named after what happened. Its docstring says what callers or operators saw then, and
what they see now.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.incidents import recording

ALL = os.environ.get("INCIDENTS") == "all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `long`, unless INCIDENTS=all."""
    if ALL:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="session")
def recorded() -> Iterator[list[recording.Case]]:
    """What incidents did to the series, written down at the end where that is asked for."""
    cases: list[recording.Case] = []
    yield cases
    if recording.ASKED:
        recording.write(cases)
