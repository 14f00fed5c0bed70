"""Runs all tests of this folder on asyncio's own loop and, if it is installed, on uvloop."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.fakes import LOOPS, Loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], Loop]]:
    return LOOPS
