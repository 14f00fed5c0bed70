"""OpenAI's routes over a parrot and a model of tensors, in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from cohort.http.error_handlers import install_error_handlers
from cohort.http.guards.limits import BodyLimit
from cohort.http.guards.request_ids import RequestIds
from cohort.http.openai.routes import openai_router
from cohort.http.v1.routes import v1_router
from cohort.registry import Registry
from cohort.repository import scan
from cohort.serving import DataPlane
from tests.engines import OneModel
from tests.fakes import make_metrics
from tests.parrot import Parrot, Parrots
from tests.planes import make_control_plane, make_data_plane

MAX_BODY = 1 << 20


class Aviary:
    """A model `polly`, which repeats the prompt, and a model `iris` of tensors.

    client: Calls the routes.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry, metrics = registry, make_metrics()
        self.plane: DataPlane = make_data_plane(registry, metrics)
        self.app = FastAPI()
        self.app.include_router(openai_router(self.plane, make_control_plane(registry, metrics)))
        self.app.include_router(v1_router(self.plane, make_control_plane(registry, metrics)))
        install_error_handlers(self.app)
        self.app.add_middleware(BodyLimit, limit=MAX_BODY, memory=self.plane.memory)
        self.app.add_middleware(RequestIds)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://cohort"
        )

    @property
    def parrot(self) -> Parrot:
        engine = self.registry.catalog["polly"].versions[1].engine
        assert isinstance(engine, Parrot)
        return engine

    async def chat(self, text: str = "one two three", **options: object) -> httpx.Response:
        """Send one message."""
        messages = [{"role": "user", "content": text}]
        body = {"model": "polly", "messages": messages, **options}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: object, **options: object) -> httpx.Response:
        """Send a prompt."""
        body = {"model": "polly", "prompt": prompt, **options}
        return await self.client.post("/v1/completions", json=body)


@pytest.fixture
async def aviary(tmp_path: Path) -> AsyncIterator[Aviary]:
    for name, file in (("polly", Parrots.file), ("iris", OneModel.file)):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        (folder / file).write_text("{}")
    registry = Registry([Parrots(), OneModel()], observe=lambda event: None)
    registry.follow(await asyncio.to_thread(scan, tmp_path, None, quiet=0, kinds=registry.kinds))
    await registry.loaded()
    yield Aviary(registry)
    registry.close()
