"""A server of one parrot, over HTTP and gRPC, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from cohort.auth import KeyRing
from cohort.auth.authority import Authority
from cohort.connections.address_counts import Addresses
from cohort.http.error_handlers import install_error_handlers
from cohort.http.guards.limits import BodyLimit
from cohort.http.guards.request_ids import RequestIds
from cohort.http.openai.routes import openai_router
from cohort.http.v1.routes import v1_router
from cohort.http.v2.routes import v2_router
from cohort.open_inference import NO_REGIONS
from cohort.registry import Registry
from cohort.repository import scan
from cohort.rpc import RpcServer
from cohort.serving import DataPlane
from tests.fakes import make_metrics
from tests.parrot import Parrot, Parrots
from tests.planes import make_control_plane, make_data_plane
from tests.waiting import until


class Aviary:
    """A plane over model "m", which is a parrot, and its servers.

    server: The server for HTTP; it has no time to drain.
    url: The address for HTTP.
    grpc: The address for gRPC.
    """

    server: uvicorn.Server
    url = grpc = ""

    def __init__(self, registry: Registry) -> None:
        self.registry, self.metrics = registry, make_metrics()
        loop = asyncio.get_running_loop()

        def gather(collect: Callable[[], None]) -> None:
            loop.call_soon(collect)

        self.plane: DataPlane = make_data_plane(registry, self.metrics, gather=gather)

    @property
    def parrot(self) -> Parrot:
        engine = self.registry.catalog["m"].versions[1].engine
        assert isinstance(engine, Parrot)
        return engine

    @property
    def application(self) -> Any:
        """FastAPI's application with OpenAI's routes and those under /v1 and /v2."""
        control, authority = make_control_plane(self.registry, self.metrics), Authority(KeyRing())
        app = FastAPI()
        app.include_router(openai_router(self.plane, control))
        app.include_router(v1_router(self.plane, control))
        app.include_router(v2_router(self.plane, control, authority=authority, regions=NO_REGIONS))
        install_error_handlers(app)
        app.add_middleware(BodyLimit, limit=4 << 20, memory=self.plane.memory)
        app.add_middleware(RequestIds)
        return app


@asynccontextmanager
async def open_aviary(folder: Path) -> AsyncIterator[Aviary]:
    """Load the parrot; nothing listens."""
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    (version / Parrots.file).write_text("{}")
    registry = Registry([Parrots()], observe=lambda event: None)
    registry.follow(await asyncio.to_thread(scan, folder, None, quiet=0, kinds=registry.kinds))
    await registry.loaded()
    yield Aviary(registry)
    registry.close()


@asynccontextmanager
async def listening(aviary: Aviary) -> AsyncIterator[Aviary]:
    """Listen for HTTP and gRPC on free ports."""
    config = uvicorn.Config(
        aviary.application,
        host="127.0.0.1",
        port=0,
        log_config=None,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=0,
    )
    server = aviary.server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    rpc = RpcServer(
        aviary.plane,
        make_control_plane(aviary.registry, aviary.metrics),
        max_message_bytes=2**20,
        max_connections=100,
        addresses=Addresses(100),
        max_calls=100,
        idle_seconds=60.0,
        authority=Authority(KeyRing()),
    )
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    aviary.url = f"http://127.0.0.1:{port}"
    aviary.grpc = f"127.0.0.1:{await rpc.start('127.0.0.1', 0)}"
    yield aviary
    await rpc.stop(0)
    server.should_exit = True
    await serving
