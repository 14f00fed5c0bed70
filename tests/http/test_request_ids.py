"""A request is found in everybody's logs by its id."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from cohort.rpc import inference_pb2 as messages
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.waiting import wait_until

GOOD = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
WRONG = {"inputs": {"features": [[5.1]]}}
PATHS = {
    "hot": "/models/iris/predict",
    "FastAPI's": "/models/iris/predict?by=asgi",
    "not found": "/nothing",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    port = free_port()
    with cohort(MODELS, tmp_path_factory.mktemp("ids"), grpc_port=port) as started:
        yield started


def logged(server: Cohort, request_id: str) -> dict[str, Any]:
    """The log line with this id, once it is written."""

    def found() -> list[str]:
        lines = [line for line in server.logged.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if f'"{request_id}"' in line]

    lines = wait_until(found)
    assert len(lines) == 1, lines
    line: dict[str, Any] = json.loads(lines[0])
    return line


@pytest.mark.parametrize("way", PATHS)
def test_an_id_comes_back_and_is_logged(server: Cohort, way: str) -> None:
    """Answers and refusals have it on both paths."""
    path = server.url + PATHS[way]
    if way != "not found":
        fine = httpx.post(path, json=GOOD, headers={"x-request-id": f"fine-{way[0]}"})
        assert fine.status_code == 200
        assert fine.headers["x-request-id"] == f"fine-{way[0]}"
    refused = httpx.post(path, json=WRONG, headers={"X-Request-ID": f"wrong-{way[0]}"})
    assert refused.headers["x-request-id"] == f"wrong-{way[0]}"
    line = logged(server, f"wrong-{way[0]}")
    assert line["code"] == refused.json()["code"]
    assert line["path"] == PATHS[way].partition("?")[0] or way == "hot"


@pytest.mark.parametrize("query", ["", "?by=asgi"], ids=["hot", "FastAPI's"])
def test_a_long_name_is_cut_in_the_log_and_in_the_sentence(server: Cohort, query: str) -> None:
    """A caller cannot choose the length of a log line, on either path."""
    request_id = f"long-{len(query)}"
    path = f"/models/{'x' * 5000}/predict"
    refused = httpx.post(server.url + path + query, json=GOOD, headers={"x-request-id": request_id})
    assert refused.status_code == 404
    line = logged(server, request_id)
    assert line["path"] == path[:200] + "…"
    assert len(line["error"]) < 300
    assert len(refused.json()["error"]) < 300


def test_a_refusal_says_which_model_and_version(server: Cohort) -> None:
    """The log names a chosen version, and no values of the request."""
    headers = {"x-request-id": "which"}
    secret = {"inputs": {"features": [[5.1, 3.5, 1.4, "secret"]]}, "parameters": {"a": "hidden"}}
    httpx.post(f"{server.url}/models/iris/predict", json=secret, headers=headers)
    line = logged(server, "which")
    assert (line["model"], line["version"], line["level"]) == ("iris", "1", "info")
    assert "secret" not in server.logged
    assert "hidden" not in server.logged


@pytest.mark.parametrize("way", PATHS)
def test_a_refusal_without_an_id_gets_one(server: Cohort, way: str) -> None:
    """A client can then report it; a good answer does not need one."""
    refused = httpx.post(server.url + PATHS[way], json=WRONG)
    new_request_id = refused.headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", new_request_id)
    assert logged(server, new_request_id)["code"] == refused.json()["code"]
    if way != "not found":
        fine = httpx.post(server.url + PATHS[way], json=GOOD)
        assert "x-request-id" not in fine.headers


@pytest.mark.parametrize("unreadable", ["two words", "", "x" * 129, "\u00e4"])
def test_what_is_no_id_is_not_passed_on(server: Cohort, unreadable: str) -> None:
    """Neither the answer nor the log contains it."""
    headers = [(b"x-request-id", unreadable.encode("latin-1"))]
    for path in PATHS.values():
        refused = httpx.post(server.url + path, json=WRONG, headers=headers)
        assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", refused.headers["x-request-id"])


async def test_grpc_has_it_in_metadata(server: Cohort) -> None:
    """The metadata key has the same name and comes back with the error."""
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        request = messages.ModelInferRequest(model_name="nobody").SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request, metadata=(("x-request-id", "by-grpc"),))
    assert dict(caught.value.trailing_metadata() or ())["x-request-id"] == "by-grpc"
    assert logged(server, "by-grpc")["code"] == "ModelNotFound"
