"""Every error, on every route, whatever raised it, has one form."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import PATIENCE, wait_until

IRIS = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "says"),
    [
        ("GET", "/nowhere", None, 404, "NotFound", "/nowhere"),
        ("GET", "/predict", None, 405, "MethodNotAllowed", "GET"),
        ("DELETE", "/models", None, 405, "MethodNotAllowed", "DELETE"),
        ("GET", "/models/nobody", None, 404, "ModelNotFound", "nobody"),
        ("GET", "/models/irs", None, 404, "ModelNotFound", "did you mean 'iris'"),
        ("GET", "/models/iris/versions/9", None, 404, "VersionNotFound", "available: 1"),
        ("GET", "/models/iris/versions/01", None, 404, "VersionNotFound", "01"),
        ("POST", "/predict", "{", 400, "InvalidInput", "JSON"),
        ("POST", "/predict", "[]", 400, "InvalidInput", "object"),
        ("POST", "/predict", IRIS, 400, "InvalidInput", "the request names no model; available: "),
        ("POST", "/models/irs/predict", IRIS, 404, "ModelNotFound", "did you mean"),
        ("POST", "/models/iris/versions/7/predict", IRIS, 404, "VersionNotFound", "7"),
        (
            "POST",
            "/models/iris/predict",
            {**IRIS, "model": "x"},
            400,
            "InvalidInput",
            "but the body names 'x'",
        ),
        ("POST", "/models/iris/predict", {"inputs": {}}, 400, "InvalidInput", "features"),
        (
            "POST",
            "/models/iris/predict",
            {"inputs": {"feature": [[1, 2, 3, 4]]}},
            400,
            "InvalidInput",
            "did you mean 'features'",
        ),
        (
            "POST",
            "/models/iris/predict",
            {"inputs": {"features": [[1, 2, 3]]}},
            400,
            "InvalidInput",
            "[N, 4]",
        ),
        (
            "POST",
            "/models/iris/predict",
            {"inputs": {"features": [[1, 2], [3]]}},
            400,
            "InvalidInput",
            "features",
        ),
        (
            "POST",
            "/models/iris/predict",
            {"inputs": {"features": [["a", 2, 3, 4]]}},
            400,
            "InvalidInput",
            "features",
        ),
        (
            "POST",
            "/models/iris/predict",
            {**IRIS, "outputs": ["lable"]},
            400,
            "InvalidInput",
            "label",
        ),
        (
            "POST",
            "/models/iris/predict",
            {**IRIS, "timeout_ms": -1},
            400,
            "InvalidInput",
            "timeout_ms",
        ),
    ],
)
def test_a_mistake_is_told_in_the_one_form(
    bundled: Cohort, method: str, path: str, body: Any, status: int, code: str, says: str
) -> None:
    """The status of the table, the error's name, and a sentence that says what was wrong."""
    content = body if isinstance(body, str) else json.dumps(body) if body is not None else None
    answer = httpx.request(method, bundled.url + path, content=content)
    told = answer.json()
    assert (answer.status_code, told["code"]) == (status, code), told
    assert set(told) == {"error", "code"}
    assert says in told["error"]


def test_a_wrong_media_type_is_415(bundled: Cohort) -> None:
    """A picture or a compressed body where JSON is taken is refused by its name."""
    for headers in ({"content-type": "image/png"}, {"content-encoding": "br"}):
        answer = httpx.post(bundled.url + "/predict", content=b"x", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "UnsupportedMedia")


def test_what_curl_sends_by_itself_is_taken(bundled: Cohort) -> None:
    """`curl -d` says it sends a form; the JSON in it is read all the same."""
    answer = httpx.post(
        bundled.url + "/models/iris/predict",
        content=json.dumps(IRIS),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code == httpx.codes.OK, answer.text


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_413(models: Path, tmp_path: Path, announced: bool) -> None:
    """Whether its length is announced or it comes in chunks, and the server serves on."""
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    big = b" " * (3 * 2**20)
    content: Any = big if announced else (big[at : at + 65536] for at in range(0, len(big), 65536))
    with cohort(models, tmp_path, max_body_mb=1) as server:
        try:
            answer = httpx.post(server.url + "/predict", content=content)
        except httpx.WriteError:  # the server may close before everything is sent
            pass
        else:
            assert (answer.status_code, answer.json()["code"]) == (413, "TooLarge")
        assert httpx.get(server.url + "/health/ready").status_code == httpx.codes.OK


async def test_a_full_queue_is_429_and_a_late_answer_504(models: Path, tmp_path: Path) -> None:
    """Callers beyond max_queue_size are told when to come back; those out of time are told so.

    The metrics count what each of them saw.
    """
    onnx_models.save(onnx_models.slow(nodes=2000), models / "slow/1/model.onnx")
    (models / "slow/config.yaml").write_text(
        "timeout_ms: 600000\nbatching: {max_batch_size: 1, max_queue_size: 4}\n"
    )
    with cohort(models, tmp_path) as server:
        body = {"inputs": {"x": [[1.0, 2.0, 3.0, 4.0]]}}
        late = {**body, "timeout_ms": 1}
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
            first = await client.post("/predict", json=late)
            assert (first.status_code, first.json()["code"]) == (504, "DeadlineExceeded")
            answers = await asyncio.gather(*(client.post("/predict", json=body) for _ in range(24)))
        codes = ["OK" if one.is_success else one.json()["code"] for one in answers]
        assert set(codes) == {"OK", "Overloaded"}
        refused = [one for one in answers if one.status_code == httpx.codes.TOO_MANY_REQUESTS]
        assert len(refused) == codes.count("Overloaded")
        assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
        counted = Scrape(server.url).by("model_inference_total", "code", model="slow")
        assert counted == {
            "OK": codes.count("OK"),
            "Overloaded": len(refused),
            "DeadlineExceeded": 1,
        }


def test_a_poisoned_request_fails_alone_with_the_models_own_words(
    models: Path, tmp_path: Path
) -> None:
    """What ONNX Runtime says of the input reaches the caller, without paths of the machine."""
    onnx_models.save(onnx_models.gather(size=3), models / "gather/1/model.onnx")
    with cohort(models, tmp_path) as server:
        answer = httpx.post(server.url + "/predict", json={"inputs": {"index": [7]}})
        told = answer.json()
        assert "out of data bounds" in told["error"] or "out of bounds" in told["error"]
        assert "onnxruntime" not in told["error"]
        assert str(models) not in told["error"]
        fine = httpx.post(server.url + "/predict", json={"inputs": {"index": [2]}})
        assert fine.json()["outputs"] == {"y": [20.0]}


def test_a_caller_who_hangs_up_is_counted_and_forgotten(models: Path, tmp_path: Path) -> None:
    """A connection that closes mid-wait cancels its request; none stays in progress."""
    onnx_models.save(onnx_models.slow(nodes=4000), models / "slow/1/model.onnx")
    with cohort(models, tmp_path) as server:
        body = json.dumps({"inputs": {"x": [[1.0, 2.0, 3.0, 4.0]]}}).encode()
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as caller:
            caller.sendall(
                b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            wait_until(
                lambda: Scrape(server.url).value("model_inflight_requests", model="slow") == 1
            )
        wait_until(lambda: Scrape(server.url).value("model_cancelled_total", model="slow") == 1)
        wait_until(lambda: Scrape(server.url).value("model_inflight_requests", model="slow") == 0)
