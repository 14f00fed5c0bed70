"""A short soak: a server under load, changes and faults."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.lengths import draw_seed
from tools.soak.soak import soak

SECONDS = 12.0
"""`make soak` takes ten minutes."""


async def test_whatever_happens_each_request_gets_its_one_answer(tmp_path: Path) -> None:
    """The answer is right, the server counts the same, and holds no more than before."""
    await soak(tmp_path, draw_seed(), SECONDS)
