"""Streams over real connections: callers who leave, and streams that are cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cohort.errors import InferenceFailed
from tests.aviary import Aviary, listening, open_aviary
from tests.http.wire import request
from tests.waiting import PATIENCE, until

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "one two three"}],
    "stream": True,
}


@pytest.fixture
async def aviary(tmp_path: Path) -> AsyncIterator[Aviary]:
    """A parrot that pauses after two words."""
    async with open_aviary(tmp_path) as aviary, listening(aviary):
        aviary.parrot.pauses_after = 2
        yield aviary


async def test_a_caller_who_leaves_is_cancelled(aviary: Aviary) -> None:
    """The version is released as soon as the connection is closed."""
    async with (
        httpx.AsyncClient(base_url=aviary.url) as client,
        client.stream("POST", CHAT, json=BODY) as response,
    ):
        await anext(response.aiter_lines())
        assert aviary.parrot.leases.count == 1
    await until(lambda: aviary.parrot.said[0].cancelled)
    assert aviary.parrot.leases.count == 0


async def test_a_caller_who_leaves_a_whole_answer_is_cancelled(aviary: Aviary) -> None:
    """Nothing was sent yet."""
    async with httpx.AsyncClient(base_url=aviary.url, timeout=0.5) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(CHAT, json={**BODY, "stream": False})
    await until(lambda: aviary.parrot.said[0].cancelled)


async def last_event(aviary: Aviary, end: Any) -> Any:
    """Return the last event of a stream, which `end` ends after its first ones."""
    last = ""
    async with (
        httpx.AsyncClient(base_url=aviary.url) as client,
        client.stream("POST", CHAT, json=BODY) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if "two" in line:
                end()
            last = line or last
    return json.loads(last.removeprefix("data: "))


async def test_a_stream_that_fails_ends_with_the_error(aviary: Aviary) -> None:
    """The last event is the error in OpenAI's form, without [DONE]."""

    def fail() -> None:
        aviary.parrot.said[0].fail(InferenceFailed("it failed"))

    assert await last_event(aviary, fail) == {
        "error": {
            "message": "it failed",
            "type": "server_error",
            "param": None,
            "code": "inference_failed",
        }
    }


async def test_a_stream_that_the_drain_cuts_ends_with_an_error(aviary: Aviary) -> None:
    """The server has no time to drain."""

    def stop() -> None:
        aviary.server.should_exit = True

    error = (await last_event(aviary, stop))["error"]
    assert error["code"] == "service_unavailable"
    assert "shutting down" in error["message"]
    assert aviary.parrot.said[0].cancelled


async def test_a_whole_answer_that_the_drain_cuts_is_an_error(aviary: Aviary) -> None:
    """Its caller gets a status and may ask another server."""
    async with httpx.AsyncClient(base_url=aviary.url, timeout=PATIENCE) as client:
        asking = asyncio.create_task(client.post(CHAT, json={**BODY, "stream": False}))
        await until(lambda: bool(aviary.parrot.said))
        aviary.server.should_exit = True
        response = await asking
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "service_unavailable"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_who_only_ends_its_sending_has_left(aviary: Aviary, stream: bool) -> None:
    """The end of its bytes looks the same as a closed connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(aviary.url.rpartition(":")[2]))
    body = {**BODY, "stream": stream}
    writer.write(request(CHAT, body, "content-type: application/json"))
    await until(lambda: bool(aviary.parrot.said))
    writer.write_eof()
    await until(lambda: aviary.parrot.said[0].cancelled)
    await reader.read()
    writer.close()
