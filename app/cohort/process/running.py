"""Serving of the models of a folder, from start to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from cohort.process.core import Core
from cohort.process.model_files import Background, ModelFiles


@asynccontextmanager
async def running(
    core: Core, files: ModelFiles, others: Iterable[Background]
) -> AsyncIterator[None]:
    """Serve the models of the files; the first models load while requests are already accepted.

    others: Further background functions.

    Raises ExceptionGroup if a background function fails.
    """
    failure: Exception | None = None
    async with AsyncExitStack() as stack:
        stack.enter_context(core.running())
        steps = await stack.enter_async_context(files.followed())
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        background = [tasks.create_task(step()) for step in (*others, *steps)]
        stack.callback(lambda: [task.cancel() for task in background])  # no more loading
        stack.callback(core.data_plane.close)  # first: no new requests
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the caller gets it without a group
            failure = error
    if failure is not None:
        raise failure
