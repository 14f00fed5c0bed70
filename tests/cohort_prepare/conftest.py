"""Fixtures that start the processes of commands that prepare models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.forking import FORKS, fork_children
from tests.inspection.pool import Pool


@pytest.fixture(scope="module", autouse=True)
def forked_children() -> Iterator[None]:
    """Fork the processes that do the work. Tests that run `cohort` as a process start them."""
    if not FORKS:
        yield
        return
    with fork_children():
        yield


@pytest.fixture(scope="module", autouse=True)
def shared_inspections() -> Iterator[None]:
    """Have one process open all models that are published, instead of one for each."""
    pool = Pool()
    pool.keeps = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cohort.inspection.inspector.start_process", pool.take)
        yield
    pool.close()
