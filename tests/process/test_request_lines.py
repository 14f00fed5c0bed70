"""The lines that requests leave in the log of a real server, over each API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from cohort.auth import digest_of
from cohort.rpc import inference_pb2 as messages
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.http.wire import exchange, request
from tests.rpc.client import PATH
from tests.waiting import PATIENCE, wait_until

WEB, OPS, ADMIN = "key-of-web", "key-of-ops", "admin-token"
ROW = [5.1, 3.5, 1.4, 0.2]
PREDICT = {"model": "iris", "inputs": {"features": [ROW]}}

Line = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """It logs each request, and warnings; `web` and `ops` have keys."""
    folder = tmp_path_factory.mktemp("lines")
    keys = folder / "keys.yaml"
    keys.write_text(
        f'- {{name: web, sha256: "{digest_of(WEB).hex()}"}}\n'
        f'- {{name: ops, sha256: "{digest_of(OPS).hex()}", admin: true}}\n'
    )
    settings: dict[str, Any] = {
        "api_keys": keys,
        "admin_token": ADMIN,
        "access_log": "true",
        "log_level": "info",
    }
    with cohort(MODELS, folder, grpc_port=free_port(), **settings) as started:
        yield started


def lines_of(server: Cohort, request_id: str, event: str = "request", count: int = 1) -> list[Line]:
    """Return the lines of a request, once there are `count`."""

    def found() -> list[Line] | None:
        whole = [line for line in server.logged.splitlines() if line.endswith("}")]
        parsed = [json.loads(line) for line in whole if f'"{request_id}"' in line]
        wanted = [line for line in parsed if line["event"] == event]
        return wanted if len(wanted) >= count else None

    found_lines = wait_until(found)
    assert len(found_lines) == count
    return found_lines


def call(
    server: Cohort, method: str, *sent: bytes, key: str | None = WEB, request_id: str
) -> tuple[str, list[bytes]]:
    """Return the name of the code that the call ends with, and the responses to messages."""
    metadata = [("x-request-id", request_id)]
    if key is not None:
        metadata.append(("authorization", f"Bearer {key}"))
    with grpc.insecure_channel(server.grpc) as channel:
        stream: Any = channel.stream_stream(f"{PATH}/{method}")
        try:
            return "OK", list(stream(iter(sent), metadata=metadata, timeout=PATIENCE))
        except grpc.RpcError as error:
            return str(error.code().name), []


def infer_message() -> bytes:
    message = messages.ModelInferRequest(model_name="iris")
    tensor = message.inputs.add(name="features", datatype="FP32", shape=[1, 4])
    tensor.contents.fp32_contents.extend(ROW)
    return message.SerializeToString()


# --- The access log


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", PREDICT),  # the fast path, where requests of one row are answered together
        ("/predict", {**PREDICT, "id": "alone"}),  # the fast path, one by one
        ("/predict?token=secret", PREDICT),  # FastAPI
    ],
)
def test_an_answered_request_leaves_one_line(
    server: Cohort,
    path: str,
    body: Mapping[str, object],
) -> None:
    """The line has the version and the caller. It leaves out the query, which may hold a key."""
    request_id = f"{len(path)}-{len(body)}"
    sent = {"x-request-id": request_id, "x-api-key": WEB}
    answer = httpx.post(server.url + path, json=body, headers=sent)
    assert answer.status_code == 200
    (line,) = lines_of(server, request_id)
    assert 0 < line.pop("ms") < 60_000
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "request",
        "logger": "cohort.access",
        "level": "info",
        "method": "POST",
        "path": "/predict",
        "status": 200,
        "bytes": len(answer.content),
        "model": "iris",
        "version": "1",
        "caller": "web",
        "request_id": request_id,
    }


def test_requests_of_one_connection_leave_lines_of_their_own(server: Cohort) -> None:
    """Callers, paths and answers in turn, the same ones again after others."""
    asked = [(WEB, "/predict"), (OPS, "/predict"), (OPS, "/models/iris/predict"), ("none", "/x")]
    with httpx.Client(base_url=server.url) as client:
        for number, (key, path) in enumerate(asked * 2):
            sent = {"x-request-id": f"turn-{number}", "x-api-key": key}
            client.post(path, json={**PREDICT, "model": "iris"}, headers=sent)
            client.post(path, json={"model": "iris", "inputs": {"features": [["a"]]}}, headers=sent)
    expected = [("web", 200), ("ops", 200), ("ops", 200), (None, 401)] * 2
    for number, ((_, path), (caller, status)) in enumerate(zip(asked * 2, expected, strict=True)):
        lines = lines_of(server, f"turn-{number}", count=2)
        assert {line["path"] for line in lines} == {path}
        assert {line.get("caller") for line in lines} == {caller}
        assert sorted(line["status"] for line in lines) == [status, max(status, 400)]


def test_calls_and_messages_of_streams_leave_one_line_each(server: Cohort) -> None:
    """The line has the final status code."""
    message = infer_message()
    _, (response,) = call(server, "ModelInfer", message, request_id="unary")
    (line,) = lines_of(server, "unary")
    assert (line["method"], line["code"], line["caller"]) == ("ModelInfer", "OK", "web")
    assert (line["model"], line["version"], line["bytes"]) == ("iris", "1", len(response))
    call(server, "ModelStreamInfer", message, b"\xff", request_id="stream")
    lines = lines_of(server, "stream", count=2)
    assert sorted(line["code"] for line in lines) == ["INVALID_ARGUMENT", "OK"]


def test_a_caller_cannot_write_lines_of_its_own(server: Cohort) -> None:
    """A path stays as it was sent, and a long one is cut."""
    sent = request("/admin/%0a" + "x" * 5000, b"", "x-request-id: odd", f"x-api-key: {WEB}")
    exchange(server.url, [sent])
    (line,) = lines_of(server, "odd")
    assert line["path"].startswith("/admin/%0axxx")
    assert len(line["path"]) < 250


def test_a_refused_request_leaves_one_line_without_a_traceback(server: Cohort) -> None:
    """Every API does so for every fault: a caller's fault affects no other caller."""
    key = f"x-api-key: {WEB}"
    wrong = {
        "json": request("/predict", b"{", key),
        "shape": request("/predict", {"model": "iris", "inputs": {"features": [[1]]}}, key),
        "model": request("/models/none/predict", {"input": [ROW]}, key),
        "key": request("/predict", PREDICT, "x-api-key: wrong"),
        "v2": request("/v2/models/iris/infer", {"inputs": [{"name": "x"}]}, key),
        "v1": request("/v1/models/iris:predict", {"instances": "x"}, key),
        "media": request("/predict", PREDICT, key, "content-type: image/png"),
        "coded": request("/predict", b"no gzip", key, "content-encoding: gzip"),
        "nowhere": request("/nowhere", PREDICT, key),
    }
    for name, sent in wrong.items():
        head, _, body = sent.partition(b"\r\n")
        named = head + b"\r\nx-request-id: wrong-" + name.encode() + b"\r\n" + body
        answer = exchange(server.url, [named])[0]
        assert 400 <= answer.status < 500, name
    unary = {
        "bytes": ("ModelInfer", b"\xff", WEB),
        "empty": ("ModelInfer", b"", WEB),
        "caller": ("ModelInfer", infer_message(), None),
        "operator": ("RepositoryModelLoad", b"", WEB),
    }
    for name, (method, message, key_sent) in unary.items():
        code, _ = call(server, method, message, key=key_sent, request_id=f"wrong-{name}")
        assert code != "OK", name
    for name in (*wrong, *unary):
        (line,) = lines_of(server, f"wrong-{name}", "refused")
        assert (line["level"], "exception" in line) == ("info", False)
    assert "Traceback" not in server.logged


# --- The audit log


def test_each_admin_request_is_logged_with_who_and_what_became_of_it(server: Cohort) -> None:
    """The line has the key's name, also for refusals, over REST and gRPC."""
    load = messages.RepositoryModelLoadRequest(model_name="iris").SerializeToString()
    path = "/admin/models/iris/load"
    by_http = {"ops": OPS, "admin": ADMIN, "web": WEB, None: "wrong"}
    for name, key in by_http.items():
        headers = {"authorization": f"Bearer {key}", "x-request-id": f"rest-{name}"}
        status = httpx.post(server.url + path, headers=headers).status_code
        (line,) = lines_of(server, f"rest-{name}", "admin request")
        assert (line["caller"], line["action"]) == (name, f"POST {path}")
        assert (line["address"], line["status"]) == ("127.0.0.1", status)
        assert line["result"] == ("done" if name in {"ops", "admin"} else "refused")
    for name, key in by_http.items():
        call(server, "RepositoryModelLoad", load, key=key, request_id=f"rpc-{name}")
        (line,) = lines_of(server, f"rpc-{name}", "admin request")
        assert (line["caller"], line["address"]) == (name, "127.0.0.1")
        assert line["result"] == ("done" if name in {"ops", "admin"} else "refused")
    missing = {"authorization": f"Bearer {OPS}", "x-request-id": "missing"}
    assert httpx.post(f"{server.url}/admin/models/none/load", headers=missing).status_code == 404
    (line,) = lines_of(server, "missing", "admin request")
    assert (line["caller"], line["result"], line["status"]) == ("ops", "refused", 404)


def test_no_key_is_in_the_log(server: Cohort) -> None:
    """Neither accepted nor refused keys are logged."""
    for secret in (WEB, OPS, ADMIN, "secret"):
        headers = {"authorization": f"Bearer {secret}", "x-request-id": f"id-{len(secret)}"}
        httpx.post(f"{server.url}/admin/models/iris/load?key={secret}", headers=headers)
        lines_of(server, f"id-{len(secret)}")
    for secret in (WEB, OPS, ADMIN, "secret"):
        assert secret not in server.logged


def test_a_quiet_log_still_has_the_lines_that_were_asked_for(tmp_path: Path) -> None:
    """At level "error", refusals are left out; admin requests are logged."""
    with cohort(tmp_path, tmp_path, ready=False, log_level="error", admin_token=ADMIN) as quiet:
        httpx.post(f"{quiet.url}/predict", json={})
        headers = {"authorization": f"Bearer {ADMIN}", "x-request-id": "quiet"}
        httpx.post(f"{quiet.url}/admin/models/none/unload", headers=headers)
        lines_of(quiet, "quiet", "admin request")
        lines = [json.loads(line) for line in quiet.logged.splitlines()]
    assert {line["event"] for line in lines} == {"admin request"}
