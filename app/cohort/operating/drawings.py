"""Drawings of the graphs of models that serve."""

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
"""Nodes whose provider is looked up."""

NOT_ON_DISK = "the files of {} that serve are not on disk any more"

STOPPING = "nothing is drawn any more: the server is stopping"

MAX_FAILURES, FAILED_SECONDS = 64, 60.0
"""What could not be drawn is not tried again for so long: others wait while it is."""

MAX_DRAWINGS = 16
MAX_DRAWING_BYTES = 8 << 20
"""Of all drawings that are kept; one of a thousand nodes has about 20 KB."""


class Drawable(NamedTuple):
    """A version that serves, to be drawn.

    key: Stands for its files and where its nodes run.
    path: The model's file.
    nodes: Gives its nodes, each with the provider that runs it.
    is_on_disk: Looks whether its files are still those that serve.
    model: Its name.
    """

    key: Hashable
    path: Path
    nodes: Callable[[], Iterable[AssignedNode]]
    is_on_disk: Callable[[], bool]
    model: str


class Drawings:
    """Has graphs drawn, one at a time and each for all who wait for it, and keeps the last few."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._failed: dict[Hashable, tuple[float, str]] = {}  # until when, and why
        self._shared = Shared(self._draw)
        self._turn = asyncio.Lock()
        self._process: DrawingProcess | None = None
        self._closed = False

    async def of(self, version: Drawable) -> bytes:
        """The drawing, as `DrawnModel` in JSON, compressed by gzip.

        Raises NotFound where it cannot be drawn, and NotReady once the server stops.
        """
        if version.key in self._kept:
            self._kept.move_to_end(version.key)
            return self._kept[version.key]
        if (failed := self._failed.get(version.key)) and monotonic() < failed[0]:
            raise NotFound(failed[1])
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
                raise NotReady(STOPPING)
            self._process = process = DrawingProcess(version.path, providers)
            try:
                drawn = await asyncio.to_thread(process.run)
            except LoadFailed as error:
                if self._closed:
                    raise NotReady(STOPPING) from error
                why = f"its graph cannot be drawn: {error}"
                self._remember(version.key, why)
                raise NotFound(why) from error
            finally:
                self._process = None
            if not await asyncio.to_thread(version.is_on_disk):  # others may have been drawn
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
