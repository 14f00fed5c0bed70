"""Drawings of the graphs of models that serve."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from app.control_plane.shared_work import Shared
from app.drawing import DrawingProcess
from app.errors import LoadFailed, NotFound
from app.session import AssignedNode

MAX_PLACED = 50_000
"""Nodes whose provider is looked up."""

MAX_DRAWINGS = 16
MAX_DRAWING_BYTES = 8 << 20
"""Of all drawings that are kept; one of a thousand nodes has about 20 KB."""


class Drawable(NamedTuple):
    """A version that serves, to be drawn.

    key: Stands for its files and where its nodes run.
    path: The model's file.
    nodes: Gives its nodes, each with the provider that runs it.
    """

    key: Hashable
    path: Path
    nodes: Callable[[], Iterable[AssignedNode]]


class Drawings:
    """Has graphs drawn, one at a time and each for all who wait for it, and keeps the last few."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._shared = Shared(self._draw)
        self._turn = asyncio.Lock()
        self._process: DrawingProcess | None = None
        self._closed = False

    async def of(self, version: Drawable) -> bytes:
        """The drawing, as `DrawnModel` in JSON, compressed by gzip. Raises NotFound."""
        if version.key in self._kept:
            self._kept.move_to_end(version.key)
            return self._kept[version.key]
        return await self._shared.get(version.key, version)

    def close(self) -> None:
        """End what is being drawn."""
        self._closed = True
        if self._process is not None:
            self._process.kill()

    async def _draw(self, version: Drawable) -> bytes:
        async with self._turn:
            providers = await asyncio.to_thread(_providers, version)
            if self._closed:
                raise NotFound("nothing is drawn any more: the server is stopping")
            self._process = process = DrawingProcess(version.path, providers)
            try:
                drawn = await asyncio.to_thread(process.run)
            except LoadFailed as error:
                raise NotFound(f"its graph cannot be drawn: {error}") from error
            finally:
                self._process = None
        self._kept[version.key] = drawn
        while (
            len(self._kept) > MAX_DRAWINGS or sum(map(len, self._kept.values())) > MAX_DRAWING_BYTES
        ):
            self._kept.popitem(last=False)
        return drawn


def _providers(version: Drawable) -> dict[str, str]:
    nodes = islice(version.nodes(), MAX_PLACED)
    return {node.name: node.provider for node in nodes if node.name}
