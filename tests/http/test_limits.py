"""The guards around every request of the ASGI application: body size and draining."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response

from cohort.connections.memory import SMALL_BYTES, MemoryBudget
from cohort.http.calls import read_body
from cohort.http.error_handlers import install_error_handlers
from cohort.http.guards.limits import BodyLimit, CloseWhenDraining
from tests import onnx_models
from tests.e2e.processes import cohort
from tests.http.fakes import application

LIMIT = 1000
PLENTY = MemoryBudget(2**30)


async def post(app: Any, content: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    """The response of `app` to a body."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://cohort") as client:
        return await client.post("/", content=content, headers=headers)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that sends a request's body back."""
    await application({**scope, "state": {"gate": None, "gone": []}}, receive, send)


async def in_parts(size: int) -> Any:
    """Yield a body of `size` bytes, without an announced length."""
    for _ in range(size // 100):
        yield b"x" * 100


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_up_to_the_limit_is_passed_on(announced: bool) -> None:
    """Its length may be announced, or it may come in chunks."""
    response = await post(
        BodyLimit(echo, LIMIT, PLENTY), b"x" * LIMIT if announced else in_parts(LIMIT)
    )
    assert response.content == b"x" * LIMIT


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit_is_refused_and_its_connection_closed(announced: bool) -> None:
    """It gets 413, with an announced length or in chunks."""
    size = LIMIT + 100
    response = await post(
        BodyLimit(echo, LIMIT, PLENTY), b"x" * size if announced else in_parts(size)
    )
    assert (response.status_code, response.json()["code"]) == (413, "TooLarge")
    assert response.headers["connection"] == "close"


class Chunk(bytearray):
    """A part of a body that a test can see being freed."""


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads a body, and handles no error."""
    await read_body(Request(scope, receive))


def handling() -> FastAPI:
    """An application that reads a body, and answers with its errors."""

    async def read(request: Request) -> Response:
        await read_body(request)
        return Response()

    app = FastAPI()
    install_error_handlers(app)
    app.add_route("/", read, methods=["POST"])
    return app


@pytest.mark.parametrize("app", [reading, handling()], ids=["by the limit", "by a handler"])
async def test_a_refused_body_is_freed_before_the_rest_is_discarded(app: Any) -> None:
    """Neither the budget nor the error's frames hold what had arrived."""
    memory = MemoryBudget(4 * SMALL_BYTES)
    parts: list[weakref.ref[Chunk]] = []
    sent: list[Any] = []
    held: list[tuple[int, int]] = []

    async def receive() -> dict[str, Any]:
        if sent:
            held.append((memory.used, sum(part() is not None for part in parts)))
            return {"type": "http.disconnect"}
        part = Chunk(SMALL_BYTES)
        parts.append(weakref.ref(part))
        return {"type": "http.request", "body": part, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    gc.collect()
    gc.disable()
    try:
        await BodyLimit(app, 2**30, memory)(scope, receive, send)
    finally:
        gc.enable()
    assert sent[0]["status"] == 429
    assert held == [(0, 0)]


async def test_a_content_length_that_is_not_a_number_is_refused() -> None:
    """It gets 400, since the end of the body is unknown."""
    response = await post(BodyLimit(echo, LIMIT, PLENTY), b"x", {"content-length": "-1"})
    assert (response.status_code, response.json()["code"]) == (400, "InvalidInput")


@pytest.mark.parametrize("draining", [True, False])
async def test_connections_close_only_while_the_process_drains(draining: bool) -> None:
    """The response that a caller waits for closes its connection."""
    response = await post(CloseWhenDraining(echo, lambda: draining), b"x")
    assert response.content == b"x"
    assert (response.headers.get("connection") == "close") == draining


@pytest.mark.parametrize("announced", [True, False])
def test_a_server_that_refused_a_large_body_serves_on(
    models: Path, tmp_path: Path, announced: bool
) -> None:
    """Its length may be announced, or it may come in chunks."""
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    big = b" " * (3 * 2**20)
    content: Any = big if announced else (big[at : at + 65536] for at in range(0, len(big), 65536))
    with cohort(models, tmp_path, max_body_mb=1) as server:
        try:
            answer = httpx.post(server.url + "/predict", content=content)
        except (httpx.WriteError, httpx.ReadError):  # it may close before everything is sent
            pass
        else:
            assert (answer.status_code, answer.json()["code"]) == (413, "TooLarge")
        assert httpx.get(server.url + "/health/ready").status_code == httpx.codes.OK
