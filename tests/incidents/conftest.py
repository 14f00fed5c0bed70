"""Incidents, reproduced; those marked `long` run only in `make incidents`.

Each test has the name of an incident. Its docstring states what callers or operators saw then, and
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
    """The effects of incidents on the series, written to a file at the end if that is requested."""
    cases: list[recording.Case] = []
    yield cases
    if recording.ASKED:
        recording.write(cases)
