"""Drawings: made once for all who ask, and kept."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from cohort.errors import NotFound, NotReady
from cohort.operating import drawings as module
from cohort.operating.drawings import Drawable, Drawings
from cohort.session import AssignedNode
from tests.e2e.processes import MODELS
from tests.waiting import iterations


def drawable(path: Path, key: str = "a") -> Drawable:
    nodes = [AssignedNode("cpu", "Relu", "node_relu")]
    return Drawable(key, path, lambda: nodes, lambda: True, "a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model that may be deleted."""
    return Path(shutil.copy(MODELS / "digits/1/model.onnx", tmp_path))


def test_all_who_ask_get_one_drawing(path: Path) -> None:
    """Calls at the same time share it, and later ones get it even if the file is gone."""

    async def ask() -> None:
        drawings = Drawings()
        first, second = await asyncio.gather(*(drawings.of(drawable(path)) for _ in range(2)))
        assert first is second
        path.unlink()
        assert await drawings.of(drawable(path)) is first
        with pytest.raises(NotFound, match="cannot draw the graph"):
            await drawings.of(drawable(path, "b"))

    asyncio.run(ask())


def test_only_the_last_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was asked for longest ago goes first."""
    monkeypatch.setattr(module, "MAX_DRAWINGS", 2)

    async def ask() -> None:
        drawings = Drawings()
        for key in "abac":
            await drawings.of(drawable(path, key))
        path.unlink()
        for key in "ac":
            await drawings.of(drawable(path, key))
        with pytest.raises(NotFound):
            await drawings.of(drawable(path, "b"))

    asyncio.run(ask())


def test_nothing_is_drawn_once_the_server_stops(path: Path) -> None:
    """Drawings in progress end, and no other begins."""

    async def ask() -> None:
        drawings = Drawings()
        asked = asyncio.ensure_future(drawings.of(drawable(path)))
        await iterations(1)
        drawings.close()
        with pytest.raises(NotReady, match="stopping"):
            await asked
        with pytest.raises(NotReady, match="stopping"):
            await drawings.of(drawable(path, "b"))

    asyncio.run(ask())


def test_what_was_drawn_of_other_files_is_not_kept(path: Path) -> None:
    """Files may be replaced before anybody looks at them again."""
    there = iter([False, True])

    async def ask() -> None:
        drawings = Drawings()
        version = drawable(path)._replace(is_on_disk=lambda: next(there))
        with pytest.raises(
            NotFound, match="the files that 'a' was loaded from are no longer on disk"
        ):
            await drawings.of(version)
        assert await drawings.of(version)

    asyncio.run(ask())


def test_what_cannot_be_drawn_is_not_tried_again_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last failures to draw a graph are cached, so they are not tried again at once."""
    monkeypatch.setattr(module, "MAX_FAILURES", 1)

    async def ask() -> None:
        drawings = Drawings()
        content = path.read_bytes()
        path.write_bytes(b"no model")
        for key in "ab":
            with pytest.raises(NotFound, match="cannot draw the graph"):
                await drawings.of(drawable(path, key))
        path.write_bytes(content)
        with pytest.raises(NotFound, match="cannot draw the graph"):
            await drawings.of(drawable(path, "a"))
        assert await drawings.of(drawable(path, "b"))
        monkeypatch.setattr(module, "monotonic", lambda: 1e12)
        assert await drawings.of(drawable(path, "a"))

    asyncio.run(ask())
