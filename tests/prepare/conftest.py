"""How tests of commands that prepare models start the processes that do the work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.forking import FORKS, fork_children


@pytest.fixture(scope="session", autouse=True)
def forked_children() -> Iterator[None]:
    """Fork the processes that do the work. Tests that run `cohort` as a process start them."""
    if not FORKS:
        yield
        return
    with fork_children():
        yield
