"""Requests that are refused: by which field, and before anything is queued."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from tests.http.openai.bad_requests import WRONG, Wrong
from tests.http.openai.conftest import Caller

PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
RIGHT: Mapping[str, dict[str, object]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "text": {"model": "m", "prompt": "hi"},
}


async def refused(caller: Caller, wrong: Wrong, **more: object) -> httpx.Response:
    body = {**RIGHT[wrong.route], **more, **wrong.changes}
    return await caller.client.post(PATHS[wrong.route], json=body)


async def test_wrong_requests_are_refused_by_their_fields(caller: Caller) -> None:
    """Each error has OpenAI's form and the field's name; nothing was queued."""
    for name, wrong in WRONG.items():
        for more in ({}, {"stream": True}):
            response = await refused(caller, wrong, **more)
            status = 404 if wrong.exception == "NotFound" else 400
            assert response.status_code == status, (name, response.text)
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}, name
            assert error["type"] == "invalid_request_error", name
            assert (error["param"], error["code"]) == (wrong.param, wrong.code), (name, error)
    assert caller.aviary.parrot.said == []


BODIES = {b"": 400, b"{": 400, b"[]": 400, b'{"model": NaN}': 400, b"[" * 100_000: 400}


async def test_a_body_that_is_no_request(caller: Caller) -> None:
    """It is refused in OpenAI's form, by the routes or by middleware."""
    for path in PATHS.values():
        for body, status in {**BODIES, b'"' + b"x" * (9 << 20) + b'"': 413}.items():
            response = await caller.client.post(path, content=body)
            assert response.status_code == status, response.text
            assert response.json()["error"]["type"] == "invalid_request_error"


async def test_other_errors_have_the_same_form(caller: Caller) -> None:
    """A wrong method, a wrong type of body and a model that is being unloaded."""
    client = caller.client
    assert (await client.get("/v1/chat/completions")).json()["error"]["code"] == (
        "method_not_allowed"
    )
    response = await client.post(
        "/v1/completions", content=b"x", headers={"content-type": "image/png"}
    )
    assert response.status_code == 415
    assert response.json()["error"]["param"] is None
    caller.aviary.parrot.close()
    for stream in (False, True):
        response = await caller.chat(stream=stream)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["type"] == "service_unavailable_error"


async def test_another_address_of_the_clients_names_the_route(caller: Caller) -> None:
    """OpenAI's client shows only a message in the form of its API."""
    doubled = ("/v1/v1/chat/completions", "/v1/chat/completions/chat/completions")
    for path in ("/v1/responses", "/chat/completions", *doubled):
        headers = {"x-stainless-lang": "python"}
        response = await caller.client.post(path, json={"model": "m"}, headers=headers)
        assert response.status_code == 404
        assert response.json()["error"]["message"].endswith(
            "did you mean POST /v1/chat/completions?"
        )


async def test_the_message_suggests_a_name(caller: Caller) -> None:
    """A key with a typing error is refused with the key that was meant."""
    response = await caller.chat(temprature=1)
    assert "did you mean 'temperature'?" in response.json()["error"]["message"]


async def test_a_body_of_the_other_route_is_refused_with_its_path(caller: Caller) -> None:
    """The error names the route that takes such a body."""
    for route, other in (("chat", "text"), ("text", "chat")):
        response = await caller.client.post(PATHS[route], json=RIGHT[other])
        assert response.status_code == 400
        assert PATHS[other] in response.json()["error"]["message"]
