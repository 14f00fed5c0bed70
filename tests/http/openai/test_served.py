"""OpenAI's routes of the real process: keys, limits and models of other kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from time import monotonic
from typing import Any

import httpx
import pytest

from cohort.http.guards.limits import REFUSED_LINGER_SECONDS
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.http.wire import Answer, answers, chunked, connect, read_all, request

CHAT: dict[str, Any] = {"model": "iris", "messages": [{"role": "user", "content": "hi"}]}
KEY = "key-of-ada"
KEYS = f"- {{name: ada, sha256: {sha256(KEY.encode()).hexdigest()}, models: [iris]}}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    folder = tmp_path_factory.mktemp("openai")
    keys = folder / "keys.yaml"
    keys.write_text(KEYS)
    with cohort(MODELS, folder, api_keys=keys, max_body_mb=1) as started:
        yield started


@pytest.fixture
def client(server: Cohort) -> Iterator[httpx.Client]:
    key = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=server.url, headers=key) as client:
        yield client


def test_a_missing_key_is_an_error_in_openais_form(server: Cohort) -> None:
    """It is refused around all routes."""
    response = httpx.post(server.url + "/v1/chat/completions", json=CHAT)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["x-request-id"]


def test_a_body_over_the_limit_is_an_error_in_openais_form(client: httpx.Client) -> None:
    """It is refused before it was read."""
    response = client.post("/v1/completions", content=b"x" * (2 << 20))
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "invalid_request_error"


LARGE = b" " * 8_000_000
REFUSED = {
    "by its length": (413, request("/v1/completions", LARGE, f"authorization: Bearer {KEY}")),
    "while it arrives": (
        413,
        request(
            "/v1/chat/completions",
            chunked(*[b" " * 65536] * 128),
            f"authorization: Bearer {KEY}",
            "transfer-encoding: chunked",
        ),
    ),
    "by its key": (401, request("/v1/completions", LARGE)),
    "by its head": (400, request("/v1/completions", LARGE, "content-type: a", "content-type: b")),
}


@pytest.mark.parametrize(("status", "sent"), REFUSED.values(), ids=REFUSED)
def test_a_client_that_first_sends_everything_reads_why_it_is_refused(
    server: Cohort, status: int, sent: bytes
) -> None:
    """The rest of a body is read, so that no reset takes the answer away."""

    def ask() -> Answer | None:
        """Return the answer, or None if a stall used up the time."""
        began, received = monotonic(), b""
        with connect(server.url) as caller, suppress(ConnectionError):
            caller.sendall(sent)
            received = read_all(caller)
        late = monotonic() - began > REFUSED_LINGER_SECONDS
        return None if late and not received else answers(received)[0]

    found = [one for one in (ask() for _ in range(10)) if one is not None]
    assert {one.status for one in found} == {status}
    assert {one.json["error"]["type"] for one in found} == {"invalid_request_error"}


def test_a_bad_head_is_an_error_in_openais_form(client: httpx.Client) -> None:
    """It is refused before a route is looked up."""
    twice = [("content-type", "application/json"), ("content-type", "text/plain")]
    response = client.post("/v1/completions", headers=twice)
    assert response.status_code == 400
    assert "content-type was sent more than once" in response.json()["error"]["message"]


def test_a_model_of_tensors_is_refused_by_name(client: httpx.Client) -> None:
    """The error names its own route; the list does not have it."""
    response = client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "model"
    assert "/models/iris/predict" in error["message"]
    assert client.get("/v1/models").json() == {"object": "list", "data": []}


def test_its_paths_stay_tensorflow_servings(client: httpx.Client) -> None:
    """The status has no keys of OpenAI's object."""
    status = client.get("/v1/models/iris").json()
    assert set(status) == {"name", "ready", "model_version_status"}


def test_a_model_that_the_caller_may_not_see_does_not_exist(client: httpx.Client) -> None:
    """It is not found, as a model that does not exist."""
    response = client.post("/v1/chat/completions", json={**CHAT, "model": "digits"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
