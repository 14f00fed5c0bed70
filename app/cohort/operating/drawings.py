"""Drawings of the graphs of loaded models."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from cohort.errors import LoadFailed, NotFound, NotReady, quoted
from cohort.inspection.drawing import DrawingProcess
from cohort.operating.shared_work import Shared
from cohort.session import AssignedNode

MAX_PLACED = 50_000
"""Nodes whose provider is listed."""

NOT_ON_DISK = "the files that {} was loaded from are no longer on disk"

STOPPING = "no graph is drawn: the server is stopping"

MAX_FAILURES, FAILED_SECONDS = 64, 60.0
"""Failures that are remembered, and for how long: a failing graph must not delay others."""

MAX_DRAWINGS = 16
MAX_DRAWING_BYTES = 8 << 20
"""The maximum of all kept drawings together; a drawing of a thousand nodes has about 20 KB."""


class Drawable(NamedTuple):
    """A loaded version to draw.

    key: Identifies its files and the providers of its nodes.
    path: The model's file.
    nodes: Returns its nodes, each with the provider that runs it.
    is_on_disk: Returns True if its files have not changed since they were loaded.
    model: Its name.
    """

    key: Hashable
    path: Path
    nodes: Callable[[], Iterable[AssignedNode]]
    is_on_disk: Callable[[], bool]
    model: str


class Drawings:
    """Draws graphs, one at a time; all who wait for a graph share it. Keeps the last few."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._failed: dict[Hashable, tuple[float, str]] = {}  # the end of the block, and the reason
        self._shared = Shared(self._draw)
        self._turn = asyncio.Lock()
        self._process: DrawingProcess | None = None
        self._closed = False

    async def of(self, version: Drawable) -> bytes:
        """Return the drawing, as `DrawnModel` in JSON, compressed by gzip.

        Raises NotFound if it cannot be drawn, and NotReady once the server stops.
        """
        if version.key in self._kept:
            self._kept.move_to_end(version.key)
            return self._kept[version.key]
        if (failed := self._failed.get(version.key)) and monotonic() < failed[0]:
            raise NotFound(failed[1])
        return await self._shared.get(version.key, version)

    def close(self) -> None:
        """Stop the drawing in progress and refuse others."""
        self._closed = True
        if self._process is not None:
            self._process.kill()

    async def _draw(self, version: Drawable) -> bytes:
        async with self._turn:
            providers = await asyncio.to_thread(_providers, version)
            if self._closed:
                raise NotReady(STOPPING)
            self._process = process = DrawingProcess(version.path, providers)
            try:
                drawn = await asyncio.to_thread(process.run)
            except LoadFailed as error:
                if self._closed:
                    raise NotReady(STOPPING) from error
                why = f"cannot draw the graph: {error}"
                self._remember(version.key, why)
                raise NotFound(why) from error
            finally:
                self._process = None
            if not await asyncio.to_thread(version.is_on_disk):  # the files may have changed
                raise NotFound(NOT_ON_DISK.format(quoted(version.model)))
        self._kept[version.key] = drawn
        while (
            len(self._kept) > MAX_DRAWINGS or sum(map(len, self._kept.values())) > MAX_DRAWING_BYTES
        ):
            self._kept.popitem(last=False)
        return drawn

    def _remember(self, key: Hashable, why: str) -> None:
        now = monotonic()
        self._failed = {one: failed for one, failed in self._failed.items() if now < failed[0]}
        if len(self._failed) < MAX_FAILURES:
            self._failed[key] = now + FAILED_SECONDS, why


def _providers(version: Drawable) -> dict[str, str]:
    nodes = islice(version.nodes(), MAX_PLACED)
    return {node.name: node.provider for node in nodes if node.name}
