"""Inputs that let their sender choose how long a model runs, or how much memory it takes.

Each is sent over every API. Other models and `/health/live` must answer while the run is in
progress. The run must end, and its memory must be released.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import numpy as np
import onnx
import pytest

from cohort.rpc import inference_pb2 as messages
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.rpc.client import PATH, raw_request
from tests.waiting import PATIENCE, wait_until

OTHERS = ['/models/plain/predict={"inputs": {"x": [[1, 2, 3, 4]]}}']
APIS = ("hot", "ordinary", "v2", "v1", "unary", "stream")

ONE = np.array([[1]], "i8")
LIMITS_MS = (400, 1200, 4000, 12_000)
"""Limits of runs, in ms. Others must be answered during at least one of them.

A busy machine may take longer for that than a short run lasts.
"""

LIMIT_MB = 64
HUGE = 10**9  # ones, 4 GB of them


class Answer(NamedTuple):
    """An answer of any API: "" for success, or the kind of error, and the text."""

    error: str
    text: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A server with models whose work depends on values, and an ordinary one."""
    folder = tmp_path_factory.mktemp("runs")
    models: dict[str, tuple[onnx.ModelProto, dict[str, int]]] = {
        "loop": (onnx_models.loop(), {}),
        "patient": (onnx_models.loop(), {"timeout_ms": 600_000}),
        "patient_nested": (onnx_models.loop(nested=True), {"timeout_ms": 600_000}),
        "limited": (onnx_models.fill(), {"memory_limit_mb": LIMIT_MB}),
        "cut": (onnx_models.fill(), {"max_output_mb": 1}),
        "set_loop": (onnx_models.optional(onnx_models.loop(), "n", ONE), {}),
        "set_fill": (onnx_models.optional(onnx_models.fill(), "n", ONE), {"max_output_mb": 1}),
        "plain": (onnx_models.mlp(), {}),
        "open": (onnx_models.identity(shape=("N", "M")), {}),
        "shaped": (onnx_models.reshaped(), {}),
        "explosive": (onnx_models.explosive(), {}),
    }
    for limit in LIMITS_MS:
        config = {"timeout_ms": limit}
        models[f"loop_{limit}"] = (onnx_models.loop(), config)
        models[f"nested_{limit}"] = (onnx_models.loop(nested=True), config)
    for name, (model, config) in models.items():
        onnx_models.save(model, folder / "models" / name / "1" / "model.onnx")
        (folder / "models" / name / "config.yaml").write_text(
            json.dumps({"providers": ["cpu"], **config})
        )
    with cohort(folder / "models", folder, watch_seconds=0, grpc_port=free_port()) as started:
        yield started


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests that wait."""
    with ThreadPoolExecutor(8) as threads:
        yield threads


def ask(server: Cohort, api: str, model: str, n: int, *, timeout_ms: int = 0) -> Answer:
    """Send a row with `n`, and the caller's own limit where it has one."""
    array = np.array([[n]], "i8")
    if api in {"unary", "stream"}:
        message = raw_request(model, {"n": array})
        if timeout_ms:
            message.parameters["timeout"].int64_param = timeout_ms * 1000
        return (_unary if api == "unary" else _stream)(server, message)
    own = {"timeout_ms": timeout_ms} if timeout_ms else {}
    parameters = {"parameters": {"timeout": timeout_ms * 1000}} if timeout_ms else {}
    path: str
    body: object
    path, body = {
        "hot": (f"/models/{model}/predict", {"inputs": {"n": [[n]]}, **own}),
        "ordinary": (f"/models/{model}/predict?ordinary", {"inputs": {"n": [[n]]}, **own}),
        "v1": (f"/v1/models/{model}:predict", {"instances": [[n]]}),
        "v2": (
            f"/v2/models/{model}/infer",
            {
                "inputs": [{"name": "n", "datatype": "INT64", "shape": [1, 1], "data": [n]}],
                **parameters,
            },
        ),
    }[api]
    response = httpx.post(server.url + path, json=body, timeout=PATIENCE)
    if response.status_code == 200:
        return Answer("", response.text)
    return Answer(KINDS.get(response.status_code, str(response.status_code)), response.text)


KINDS = {400: "invalid", 500: "failed", 504: "deadline"}
CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.INTERNAL: "failed",
    grpc.StatusCode.DEADLINE_EXCEEDED: "deadline",
}


def _unary(server: Cohort, message: messages.ModelInferRequest) -> Answer:
    with grpc.insecure_channel(server.grpc) as channel:
        call: Callable[..., Any] = channel.unary_unary(f"{PATH}/ModelInfer")
        try:
            call(message.SerializeToString(), timeout=PATIENCE)
        except grpc.RpcError as error:
            code = error.code()
            return Answer(CODES.get(code, str(code)), str(error.details()))
        return Answer("", "")


def _stream(server: Cohort, message: messages.ModelInferRequest) -> Answer:
    with grpc.insecure_channel(server.grpc) as channel:
        call: Callable[..., Any] = channel.stream_stream(f"{PATH}/ModelStreamInfer")
        data = next(iter(call(iter([message.SerializeToString()]), timeout=PATIENCE)))
        text = messages.ModelStreamInferResponse.FromString(data).error_message
    if not text:
        return Answer("", "")
    deadline = "no response within" in text
    limits = "max_output_mb" in text or "first 0" in text
    return Answer("deadline" if deadline else "invalid" if limits else "failed", text)


def answers_others(server: Cohort, busy: Future[Answer]) -> bool:
    """Ask for health and another model's prediction; whether `busy` was in progress all along."""
    alive = httpx.get(f"{server.url}/health/live", timeout=PATIENCE)
    row = {"inputs": {"x": [[1, 2, 3, 4]]}}
    predicted = httpx.post(f"{server.url}/models/plain/predict", json=row, timeout=PATIENCE)
    assert (alive.status_code, predicted.status_code) == (200, 200)
    return not busy.done()


def runs_of(server: Cohort, model: str) -> float:
    return Scrape(server.url).value("model_run_duration_seconds_count", model=model)


def resident(server: Cohort) -> int:
    """The memory of the server, in MB."""
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096 >> 20


@pytest.mark.parametrize("model", ["loop", "nested"])
@pytest.mark.parametrize("api", APIS)
def test_a_run_without_end_ends_at_its_deadline(
    server: Cohort, pool: ThreadPoolExecutor, api: str, model: str
) -> None:
    """Its caller gets the error, others are answered during it, and its thread is free again."""
    for limit in LIMITS_MS:
        limited = f"{model}_{limit}"
        before = runs_of(server, limited)
        endless = pool.submit(ask, server, api, limited, onnx_models.FOREVER)
        meanwhile = [answers_others(server, endless) for _ in range(2)]
        answer = endless.result(PATIENCE)
        assert answer.error == "deadline", answer
        if all(meanwhile):
            break
    assert all(meanwhile), "nobody was answered before it ended"
    wait_until(lambda: runs_of(server, limited) > before)  # counted when it has ended
    wait_until(lambda: ask(server, api, limited, 3).error == "")


@pytest.mark.parametrize("model", ["patient", "patient_nested"])
@pytest.mark.parametrize("api", [api for api in APIS if api != "v1"])  # which has no such limit
def test_a_run_without_end_ends_at_its_callers_limit(
    server: Cohort, pool: ThreadPoolExecutor, api: str, model: str
) -> None:
    """It ends though the model's limit is minutes; others are answered during the run."""
    endless = pool.submit(ask, server, api, model, onnx_models.FOREVER, timeout_ms=200)
    answers_others(server, endless)
    answer = endless.result(PATIENCE)
    assert answer.error == "deadline", answer
    assert "within 200 ms" in answer.text
    assert ask(server, api, model, 3).error == ""


@pytest.mark.parametrize("api", ["hot", "ordinary", "v2", "unary"])
def test_a_default_that_is_set_is_bounded_as_any_input(
    server: Cohort, pool: ThreadPoolExecutor, api: str
) -> None:
    """It delays no other request and ends, though the profile was measured with the default."""
    endless = pool.submit(ask, server, api, "set_loop", onnx_models.FOREVER, timeout_ms=200)
    answers_others(server, endless)
    assert endless.result(PATIENCE).error == "deadline"
    assert "max_output_mb" in ask(server, api, "set_fill", 2**18 + 1).text
    for model in ("set_loop", "set_fill"):
        assert ask(server, api, model, 3).error == ""


@pytest.mark.parametrize("api", APIS)
def test_a_run_over_the_memory_limit_fails_by_itself(server: Cohort, api: str) -> None:
    """It names the limit, the next request is answered, and memory is what it was."""
    assert ask(server, api, "limited", 10).error == ""
    before = resident(server)
    answer = ask(server, api, "limited", HUGE)
    assert answer.error == "failed"
    assert f"{LIMIT_MB} MB (memory_limit_mb)" in answer.text
    assert ask(server, api, "limited", 10).error == ""
    assert resident(server) < before + 8 * LIMIT_MB  # it asked for sixty times as much


@pytest.mark.parametrize("api", APIS)
def test_outputs_over_their_limit_are_not_written(server: Cohort, api: str) -> None:
    """A megabyte is, one number more is not."""
    answer = ask(server, api, "cut", 2**18 + 1)
    assert answer.error == "invalid"
    assert "more than 1 MB (max_output_mb)" in answer.text
    assert ask(server, api, "cut", 10).error == ""


VAST = [2**40, 0]


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("api", ["v2", "binary", "unary", "typed", "stream"])
def test_rows_without_elements_weigh_something(server: Cohort, api: str, classes: int) -> None:
    """A trillion of them in a few bytes are refused, a thousand are answered."""
    answer = ask_empty(server, api, VAST, classes)
    assert answer.error == "invalid"
    assert "lengths before its first 0" in answer.text
    assert ask_empty(server, api, [1024, 0], classes).error == ""
    assert ask_empty(server, api, [0, 2**20], classes).error == ""


def ask_empty(server: Cohort, api: str, shape: list[int], classes: int) -> Answer:
    """Send an input without elements to a model of any lengths, and ask for classes."""
    if api in {"v2", "binary"}:
        tensor: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": shape}
        if api == "v2":
            tensor["data"] = []
        else:
            tensor["parameters"] = {"binary_data_size": 0}
        wanted = {"name": "y", "parameters": {"classification": classes} if classes else {}}
        body = json.dumps({"inputs": [tensor], "outputs": [wanted]})
        response = httpx.post(
            f"{server.url}/v2/models/open/infer",
            content=body,
            headers={"inference-header-content-length": str(len(body))},
            timeout=PATIENCE,
        )
        error = "" if response.is_success else KINDS[response.status_code]
        return Answer(error, response.text)
    message = messages.ModelInferRequest(model_name="open")
    message.inputs.add(name="x", datatype="FP32", shape=shape)
    if api == "typed":
        message.inputs[0].contents.SetInParent()
    else:
        message.raw_input_contents.append(b"")
    output = message.outputs.add(name="y")
    if classes:
        output.parameters["classification"].int64_param = classes
    return (_stream if api == "stream" else _unary)(server, message)


def test_small_values_do_not_bring_such_models_to_the_event_loop(server: Cohort) -> None:
    """Such models never run on the event loop, and the description states why."""
    for model, reason in (
        ("loop", "the run time of Loop depends on input values"),
        ("limited", "the run time of Expand depends on input values"),
        ("plain", ""),
        ("shaped", ""),
    ):
        found = httpx.get(f"{server.url}/models/{model}/versions/1").json()["profile"]
        assert found["unpredictable"] == reason
        assert bool(found["inline_up_to_rows"]) == (not reason)
        gauge = Scrape(server.url).value("model_unpredictable", model=model)
        assert gauge == float(bool(reason))


def test_a_version_leaves_the_event_loop_once_a_run_there_is_slow(server: Cohort) -> None:
    """It leaves permanently: its shapes caused the slow run, which the file cannot predict."""
    url = f"{server.url}/models/explosive"

    def profile() -> Any:
        return httpx.get(f"{url}/versions/1").json()["profile"]

    assert profile()["unpredictable"] == ""
    assert profile()["inline_up_to_rows"] >= 1
    longer = {"inputs": {"x": [[1.0] * 17]}}  # by estimate hardly more than 16 take
    assert httpx.post(f"{url}/predict", json=longer, timeout=PATIENCE).status_code == 200
    reason = wait_until(lambda: profile()["unpredictable"])
    assert reason.startswith("a run on the event loop took ")
    assert profile()["inline_up_to_rows"] == 0
    assert Scrape(server.url).value("model_inline_stalls_total", model="explosive") == 1
    assert httpx.post(f"{url}/predict", json=longer, timeout=PATIENCE).status_code == 200
    assert Scrape(server.url).value("model_inline_stalls_total", model="explosive") == 1
    wait_until(lambda: '"runs left the event loop"' in server.logged)


def test_many_runs_without_end_leave_room_for_others(
    server: Cohort, pool: ThreadPoolExecutor
) -> None:
    """They take the slots of the CPU, not the event loop and not the slot for short runs."""
    for limit in LIMITS_MS:
        model = f"loop_{limit}"
        endless = [pool.submit(ask, server, "hot", model, onnx_models.FOREVER) for _ in range(4)]
        meanwhile = answers_others(server, endless[0])
        rows = {"inputs": {"x": [[1, 2, 3, 4]] * 2000}}  # too long for the loop
        response = httpx.post(f"{server.url}/models/shaped/predict", json=rows, timeout=PATIENCE)
        assert response.status_code == 200
        assert {one.result(PATIENCE).error for one in endless} == {"deadline"}
        if meanwhile:
            break
    assert meanwhile, "nobody was answered before they ended"
