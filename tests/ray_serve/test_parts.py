"""The parts of the Ray application that need no Ray; `make ray` tests the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from cohort.ray_serve.arguments import Arguments
from cohort.ray_serve.asgi import answer
from cohort.ray_serve.ordered import in_order
from cohort.ray_serve.scaling import wanted_replicas
from cohort.ray_serve.wire import ANSWERED_WHOLE, HttpRequest, model_of
from cohort.repository.yaml_files import parse_yaml
from tests.e2e.processes import ROOT


def request(path: str, body: bytes = b"", query: bytes = b"") -> HttpRequest:
    return HttpRequest("POST", path, query, [], body, "http", None)


@pytest.mark.parametrize(
    ("sent", "model"),
    [
        (request("/models/iris/predict"), "iris"),
        (request("/v2/models/iris/versions/1/infer"), "iris"),
        (request("/v1/models/iris:predict"), "iris"),
        (request("/v1/models/a.b-c/labels/x:predict"), "a.b-c"),
        (request("/invocations", query=b"outputs=a&model=iris"), "iris"),
        (request("/predict", b'{"model": "iris", "inputs": {}}'), "iris"),
        (request("/predict", b'{"model": 3}'), None),
        (request("/predict", b'{"model": "iris"'), None),
        (request("/predict", b"{" + b" " * (1 << 17) + b'"model": "iris"}'), None),
        (request("/health/ready"), None),
    ],
)
def test_the_model_of_a_request_is_found_as_the_server_finds_it(
    sent: HttpRequest, model: str | None
) -> None:
    """In the path, the query or a short body; the replica reads the rest itself."""
    assert model_of(sent) == model


@pytest.mark.parametrize(
    ("replicas", "queue", "busy", "wanted"),
    [
        (1, 0.021, 0.5, 2),
        (2, 1.0, 2.0, 4),
        (4, 0.015, 1.0, 4),
        (4, 0.001, 1.0, 2),
        (4, 0.0, 0.0, 1),
        (1, 0.001, 1.5, 1),
    ],
)
def test_replicas_follow_the_time_in_the_queue(
    replicas: int, queue: float, busy: float, wanted: int
) -> None:
    """More above the target of 20 ms, at most twice as many; fewer if the rest can do the work."""
    assert wanted_replicas(replicas, queue, busy, 0.02) == wanted


def test_arguments_of_the_shipped_config_are_valid() -> None:
    """And a wrong one is named."""
    config: Any = parse_yaml((ROOT / "deploy/ray/serve.yaml").read_text(), "serve.yaml")
    (application,) = config["applications"]
    given = Arguments.model_validate(application["args"])
    assert (given.models, given.max_replicas) == ("models", 4)
    with pytest.raises(ValidationError, match="replica_count"):
        Arguments.model_validate({"replica_count": 2})
    with pytest.raises(ValidationError, match="must not be larger"):
        Arguments.model_validate({"dedicated": {"iris": {"min_replicas": 9}}})
    with pytest.raises(ValidationError, match="must not have models"):
        Arguments.model_validate({"settings": {"models": "other"}})
    with pytest.raises(ValidationError, match="name a folder of models"):
        Arguments.model_validate({"models": ""})
    for wrong in {"replicas": True}, {"max_replicas": "4"}, {"dedicated": {"iris": {"cpus": True}}}:
        with pytest.raises(ValidationError, match="should be a valid"):
            Arguments.model_validate(wrong)


async def test_each_piece_of_a_body_can_be_read_before_the_next_is_sent() -> None:
    """A caller who leaves cancels the application."""
    seen, left = asyncio.Event(), asyncio.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"question"
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await seen.wait()
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    pieces = answer(application, request("/stream", b"question"))
    head: Any = await anext(pieces)
    assert (head.status, head.body, head.more) == (201, b"one", True)
    seen.set()
    assert await anext(pieces) == b"two"
    await pieces.aclose()
    await left.wait()


async def test_an_application_that_fails_raises_its_error() -> None:
    """After what it sent."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        raise OSError("no more")

    pieces = answer(application, request("/stream"))
    head: Any = await anext(pieces)
    assert head.body == b"one"
    with pytest.raises(OSError, match="no more"):
        [piece async for piece in pieces]


async def test_results_keep_the_order_of_a_stream() -> None:
    """Later work that ends first waits; no more than the limit is in progress."""
    at_once, most, first = 0, 0, asyncio.Event()

    async def items() -> AsyncIterator[int]:
        for number in range(20):
            yield number

    async def work(number: int) -> int:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if number == 0:
            await first.wait()
        elif number == 3:
            first.set()
        at_once -= 1
        return number

    assert [number async for number in in_order(items(), work, at_once=4)] == [*range(20)]
    assert most <= 6


@pytest.mark.parametrize(
    ("path", "whole"),
    [
        ("/models/iris/predict", True),
        ("/v1/models/iris:predict", True),
        ("/v2/models/iris/infer", True),
        ("/health/ready", True),
        ("/v2/models/iris/generate_stream", False),
        ("/v1/chat/completions", False),
        ("/playground/data/live", False),
    ],
)
def test_only_answers_that_are_no_streams_pass_as_a_whole(path: str, *, whole: bool) -> None:
    """Others may have many pieces."""
    assert (ANSWERED_WHOLE.fullmatch(path) is not None) == whole
