"""Run everything here on asyncio's own loop and, if it is installed, on uvloop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from cohort.scheduling import Scheduler
from tests.fakes import LOOPS, Loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], Loop]]:
    return LOOPS


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    """Two slots for whatever runs."""
    scheduler = Scheduler(default_slots=2)
    yield scheduler
    scheduler.close()
