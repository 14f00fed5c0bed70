"""The process as an ASGI application: the service at once, FastAPI's routes a moment later."""

from __future__ import annotations

import asyncio
import gc
import signal
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from cohort.process.service import Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = structlog.get_logger("cohort")


@asynccontextmanager
async def running_or_ended(service: Service) -> AsyncIterator[None]:
    """Run the service; if it fails after its start, log the error and end the process."""
    started = False
    try:
        async with service.running():
            started = True
            yield
    except ExceptionGroup:
        if started and not service.control_plane.draining:
            # No request is served after this, and uvicorn would not notice.
            log.critical("the service failed", exc_info=True)
            service.failed = True
            signal.raise_signal(signal.SIGTERM)
        raise


class LaterApplication:
    """ASGI: the lifespan runs `service`; requests wait for FastAPI's application.

    That application is imported and built on a thread, which takes half a second. The fast path
    answers during this time. Building begins once the first models are loaded, or with the first
    request that needs it.

    make: Imports and builds the application of a service; its lifespan is not run.
    """

    def __init__(self, service: Service, make: Callable[[Service], ASGIApp]) -> None:
        self._service = service
        self._make = make
        self._building: asyncio.Task[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            application = await self.built()
            await application(scope, receive, send)

    async def built(self) -> ASGIApp:
        """Return FastAPI's application; the first call builds it."""
        if self._building is None or (self._building.done() and self._building.exception()):
            self._building = asyncio.create_task(asyncio.to_thread(self._built_at_once))
        return await asyncio.shield(self._building)  # a cancelled request must not cancel the build

    def _built_at_once(self) -> ASGIApp:
        application = self._make(self._service)
        gc.freeze()  # it is permanent: the collector can skip it
        return application

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start and stop the service: https://asgi.readthedocs.io/en/latest/specs/lifespan.html."""
        await receive()
        started = False
        try:
            async with running_or_ended(self._service):
                building = asyncio.create_task(self._build_once_loaded())
                await send({"type": "lifespan.startup.complete"})
                started = True
                await receive()
                building.cancel()
        except BaseException:
            kind = "shutdown" if started else "startup"
            await send({"type": f"lifespan.{kind}.failed", "message": traceback.format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    async def _build_once_loaded(self) -> None:
        await self._service.core.registry.first_loaded()
        await self.built()
