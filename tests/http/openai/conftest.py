"""OpenAI's routes over a parrot, in the test's own process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.aviary import Aviary, open_aviary


class Caller:
    """Calls the routes of an aviary, whose model is `m`."""

    def __init__(self, aviary: Aviary) -> None:
        self.aviary = aviary
        transport = httpx.ASGITransport(aviary.application)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://cohort")

    async def chat(self, text: str = "one two three", **options: object) -> httpx.Response:
        """Send one message."""
        messages = [{"role": "user", "content": text}]
        body = {"model": "m", "messages": messages, **options}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: object, **options: object) -> httpx.Response:
        """Send a prompt, or several."""
        body = {"model": "m", "prompt": prompt, **options}
        return await self.client.post("/v1/completions", json=body)


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    async with open_aviary(tmp_path) as aviary:
        yield Caller(aviary)


def events_of(response: httpx.Response) -> list[Any]:
    """Return the documents of a stream; the last event is [DONE] and left out."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]
