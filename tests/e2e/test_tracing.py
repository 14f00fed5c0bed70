"""Traces of the real server, as collectors get them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex
from threading import Event
from typing import cast

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from cohort.http.spans import end_http
from cohort.observability.tracing import RequestSpan
from tests import onnx_models
from tests.collector import SERVER, Collector, Seen
from tests.e2e.processes import ROOT, Cohort, cohort, free_port, run_command
from tests.waiting import PATIENCE, wait_until

STAGES = ("decode", "queue", "run", "encode")
PICKED = {"inputs": {"index": [99]}}
ROW = {"inputs": {"x": [[1.0, 2.0, 3.0]]}}
PIPELINE = """
inputs: {x: {}}
steps:
  double: {model: m, inputs: {x: x}}
outputs: {y: double.y}
"""
ROLLOUTS = """
shadowed:
  variants: {stable: {version: 1, weight: 100}}
  shadow: {version: 2, sample: 1.0}
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """One that traces to `collector`, with models, a pipeline and a shadow."""
    folder = tmp_path_factory.mktemp("traced")
    for place in ("m/1", "shadowed/1", "shadowed/2"):
        (folder / "models" / place).mkdir(parents=True)
        onnx_models.save(onnx_models.times(2.0), folder / "models" / place / "model.onnx")
    onnx_models.save(onnx_models.gather(), folder / "models/pick/1/model.onnx")
    shutil.copytree(ROOT / "models/smalltalk", folder / "models/smalltalk")
    (folder / "models/steps/1").mkdir(parents=True)
    (folder / "models/steps/1/pipeline.yaml").write_text(PIPELINE)
    (folder / "rollouts.yaml").write_text(ROLLOUTS)
    patch = pytest.MonkeyPatch()
    for name, value in collector.environment.items():
        patch.setenv(name, value)
    with cohort(
        folder / "models",
        folder,
        access_log=True,
        rollouts=folder / "rollouts.yaml",
        grpc_port=free_port(),
    ) as started:
        patch.undo()
        started.wait_for("/v2/models/steps/ready")
        yield started


def caller(*, sampled: bool = True) -> tuple[str, dict[str, str]]:
    """A trace id, and the headers of a caller that is in this trace."""
    trace_id = token_hex(16)
    return trace_id, {
        "traceparent": f"00-{trace_id}-{'ab' * 8}-0{int(sampled)}",
        "tracestate": "vendor=1",
        "baggage": "tenant=blue",
    }


def predict(server: Cohort, headers: dict[str, str], path: str = "/models/m/predict") -> None:
    httpx.post(server.url + path, json=ROW, headers=headers).raise_for_status()


def by_fastapi(server: Cohort, headers: dict[str, str]) -> None:
    predict(server, headers, "/models/m/predict?server_timing")


def rpc(server: Cohort) -> tuple[triton.InferenceServerClient, triton.InferInput]:
    tensor = triton.InferInput("x", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    return triton.InferenceServerClient(server.grpc), tensor


def by_grpc(server: Cohort, headers: dict[str, str]) -> None:
    client, tensor = rpc(server)
    with client:
        client.infer("m", [tensor], headers=headers)


def by_grpc_task(server: Cohort, headers: dict[str, str]) -> None:
    client, tensor = rpc(server)
    with client:
        client.infer("m", [tensor], headers=headers, parameters={"any": "thing"})


def by_chat(server: Cohort, headers: dict[str, str], *, stream: bool) -> None:
    body = {"model": "smalltalk", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    found = httpx.post(
        f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE
    )
    assert "content" in found.raise_for_status().text


WAYS: list[Callable[[Cohort, dict[str, str]], None]] = [
    predict, by_fastapi, by_grpc, by_grpc_task
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_has_the_stages_of_a_request(
    server: Cohort, collector: Collector, stream: bool
) -> None:
    """Its time in the queue is that before its place in the cache."""
    trace_id, headers = caller()
    by_chat(server, headers, stream=stream)
    found = collector.trace(trace_id, *STAGES)
    assert found["SERVER"].attributes["gen_ai.operation.name"] == "chat"
    queue, run = found["queue"].span, found["run"].span
    assert queue.end_time_unix_nano == run.start_time_unix_nano
    assert run.end_time_unix_nano > run.start_time_unix_nano


@pytest.mark.parametrize("ask", WAYS)
def test_a_request_is_one_server_span_with_its_stages(
    server: Cohort, collector: Collector, ask: Callable[[Cohort, dict[str, str]], None]
) -> None:
    """Its parent is the caller's span; below it are the stages, in their order."""
    for _ in range(2):  # the second head is known
        trace_id, headers = caller()
        ask(server, headers)
        found = collector.trace(trace_id, *STAGES)
        root = found["SERVER"]
        assert root.parent == "ab" * 8
        assert root.span.trace_state == "vendor=1"
        assert root.attributes["baggage.tenant"] == "blue"
        assert root.attributes["cohort.model"] == "m"
        if "rpc.system" not in root.attributes:
            assert root.attributes["http.route"] == "/models/{model}/predict"
        status = [value for key, value in root.attributes.items() if key.endswith("status_code")]
        assert status == [0 if "rpc.system" in root.attributes else 200]
        assert [found[name].parent for name in STAGES] == [root.id] * 4
        starts = [found[name].span.start_time_unix_nano for name in STAGES]
        assert starts == sorted(starts)
        assert sum(one.span.kind == SERVER for one in collector.of(trace_id)) == 1
        assert root.resource["service.name"] == "cohort"


def test_messages_of_a_stream_are_below_its_span(server: Cohort, collector: Collector) -> None:
    """One SERVER span for the call, and a span with stages for each message."""
    trace_id, headers = caller()
    client, tensor = rpc(server)
    answered, both = [], Event()

    def reply(result: object, error: object) -> None:
        answered.append((result, error))
        if len(answered) == 2:
            both.set()

    with client:
        client.start_stream(reply, headers=headers)
        for _ in range(2):
            client.async_stream_infer("m", [tensor])
        assert both.wait(60)
        client.stop_stream()
    root = collector.trace(trace_id, "message", *STAGES)["SERVER"]
    spans = collector.of(trace_id)
    messages = [one for one in spans if one.span.name == "message"]
    assert [one.parent for one in messages] == [root.id] * 2
    runs = {one.parent for one in spans if one.span.name == "run"}
    assert runs == {one.id for one in messages}


def test_a_batch_is_linked_with_all_its_requests(server: Cohort, collector: Collector) -> None:
    """Each run has a link to the batch, the batch to each run, and both count the requests."""

    sent: set[str] = set()

    def shared() -> Seen | None:
        with ThreadPoolExecutor(8) as pool:
            callers = [caller() for _ in range(16)]
            sent.update(trace_id for trace_id, _ in callers)
            list(pool.map(lambda one: predict(server, one[1]), callers))
        own = [one for one in collector.seen if one.span.trace_id.hex() in sent]
        batches = [one for one in own if one.span.name == "batch"]
        return next((one for one in batches if len(one.span.links) > 1), None)

    batch = wait_until(shared)
    assert batch is not None
    wait_until(lambda: set(batch.links) <= {one.id for one in collector.seen})
    runs = [one for one in collector.seen if one.id in batch.links]
    assert len(runs) == batch.attributes["cohort.batch.requests"]
    assert len({one.span.trace_id for one in runs}) == len(runs)
    for run in runs:
        assert run.span.name == "run"
        assert run.links == [batch.id]
        assert run.attributes["cohort.batch.requests"] == len(runs)
        assert isinstance(run.attributes["cohort.queue.seconds"], float)


def test_a_trace_that_is_not_sampled_is_logged_and_not_exported(
    server: Cohort, collector: Collector
) -> None:
    """The caller decides for itself; the access log has its trace id all the same."""
    for path in ("/models/m/predict", "/models/m/predict?server_timing"):
        dropped, headers = caller(sampled=False)
        predict(server, headers, path)
        kept, headers = caller()
        predict(server, headers, path)
        collector.trace(kept)
        assert collector.of(dropped) == []
        wait_for_line(server, kept)
        line = next(line for line in server.logged.splitlines() if dropped in line)
        assert json.loads(line)["trace_id"] == dropped


def wait_for_line(server: Cohort, text: str) -> None:
    wait_until(lambda: text in server.logged)


def test_a_run_that_fails_is_below_the_request(server: Cohort, collector: Collector) -> None:
    """Its time is not that of the queue."""
    trace_id, headers = caller()
    answer = httpx.post(f"{server.url}/models/pick/predict", json=PICKED, headers=headers)
    assert answer.status_code == 400
    found = collector.trace(trace_id, *STAGES)
    assert found["SERVER"].attributes["error.type"] == "InvalidInput"
    assert found["run"].attributes["cohort.batch.requests"] == 1


@pytest.mark.parametrize("path", ["/models/m/predict", "/models/m/predict?server_timing"])
@pytest.mark.parametrize("body", [b'{"inputs": {"x": [[1.0]]}}', b"{"])
def test_a_refusal_has_its_status_and_a_line_with_its_trace(
    server: Cohort, collector: Collector, path: str, body: bytes
) -> None:
    """The span names the error; the log line finds the trace."""
    trace_id, headers = caller()
    headers["content-type"] = "application/json"
    answer = httpx.post(server.url + path, content=body, headers=headers)
    assert answer.status_code == 400
    root = collector.trace(trace_id)["SERVER"]
    assert root.attributes["http.response.status_code"] == 400
    assert root.attributes["error.type"] == "InvalidInput"
    lines = [json.loads(one) for one in server.logged.splitlines() if trace_id in one]
    assert "refused" in [one["event"] for one in lines]


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/ml/models/m/predict", "/models/{model}/predict"),
        ("/v2/models/v/versions/2/infer", "/v2/models/{model}/versions/{version}/infer"),
        ("/v1/models/models:predict", "/v1/models/{model}:predict"),
    ],
)
def test_a_route_has_no_names_and_no_prefix(path: str, route: str) -> None:
    """Also if a model is called as a part of the path."""
    ended: dict[str, object] = {}

    class Span:
        def set(self, attributes: dict[str, object]) -> None:
            ended.update(attributes)

        def end(self, name: str, *, failed: bool) -> None:
            ended.update(name=name, failed=failed)

    model = path.split("/models/")[1].split("/", maxsplit=1)[0].split(":", maxsplit=1)[0]
    version = "2" if "/versions/" in path else None
    end_http(cast("RequestSpan", Span()), "POST", 200, path, model, version, "/ml")
    assert (ended["http.route"], ended["name"]) == (route, f"POST {route}")


@pytest.mark.parametrize("path", ["/models/nobody/predict", "/models/nobody/predict?server_timing"])
def test_a_model_that_is_missing_is_named(server: Cohort, collector: Collector, path: str) -> None:
    """The span of the refusal has the requested model and the error."""
    trace_id, headers = caller()
    assert httpx.post(server.url + path, json=ROW, headers=headers).status_code == 404
    root = collector.trace(trace_id)["SERVER"]
    assert root.attributes["cohort.model"] == "nobody"
    assert root.attributes["error.type"] == "ModelNotFound"


def test_a_model_that_is_missing_is_named_for_grpc(server: Cohort, collector: Collector) -> None:
    """As for HTTP."""
    trace_id, headers = caller()
    client, tensor = rpc(server)
    with client, pytest.raises(InferenceServerException, match="not found"):
        client.infer("nobody", [tensor], headers=headers)
    root = collector.trace(trace_id)["SERVER"]
    assert root.attributes["cohort.model"] == "nobody"
    assert root.attributes["error.type"] == "ModelNotFound"


def test_invalid_headers_of_callers_are_not_logged(server: Cohort, collector: Collector) -> None:
    """A list of baggage that is sent in parts is read whole."""
    trace_id, headers = caller()
    parts = [("baggage", "tenant=blue"), ("baggage", "size=big"), ("baggage", "wrong," * 50)]
    sent = [("traceparent", headers["traceparent"]), ("tracestate", "==="), *parts]
    httpx.post(f"{server.url}/models/m/predict", json=ROW, headers=sent).raise_for_status()
    root = collector.trace(trace_id)["SERVER"]
    assert (root.attributes["baggage.tenant"], root.attributes["baggage.size"]) == ("blue", "big")
    wait_for_line(server, trace_id)
    assert "wrong" not in server.logged
    assert "===" not in server.logged


@pytest.mark.parametrize("prefix", ["", "/v1", "/v2"])
def test_routes_of_fastapi_are_traced_and_probes_are_not(
    server: Cohort, collector: Collector, prefix: str
) -> None:
    """A route has the whole pattern of its path; what asks every second stays out."""
    probe, headers = caller()
    httpx.get(f"{server.url}/health/ready", headers=headers)
    trace_id, headers = caller()
    httpx.get(f"{server.url}{prefix}/models/m", headers=headers)
    root = collector.trace(trace_id)["SERVER"]
    route = f"{prefix}/models/{{model}}"
    assert (root.span.name, root.attributes["http.route"]) == (f"GET {route}", route)
    assert collector.of(probe) == []


def test_steps_and_shadows_are_below_the_request(server: Cohort, collector: Collector) -> None:
    """A step has its model and batch; a shadow has its version."""
    trace_id, headers = caller()
    predict(server, headers, "/models/steps/predict")
    found = collector.trace(trace_id, "step double", "run")
    step = found["step double"]
    assert step.parent == found["SERVER"].id
    assert step.attributes["cohort.model"] == "m"
    assert step.links == [found["batch"].id]
    for path in ("/models/shadowed/predict", "/models/shadowed/predict?server_timing"):
        trace_id, headers = caller()
        predict(server, headers, path)
        found = collector.trace(trace_id, "shadow")
        assert found["shadow"].parent == found["SERVER"].id
        assert found["shadow"].attributes["cohort.model.version"] == "2"


def test_durations_have_exemplars_in_openmetrics(server: Cohort) -> None:
    """They lead from a slow bucket to a trace; Prometheus's older format does not allow them."""
    trace_id, headers = caller()
    predict(server, headers)
    accept = {"accept": "application/openmetrics-text"}
    text = httpx.get(f"{server.url}/metrics", headers=accept).text
    found = {
        family.name: [sample.exemplar.labels["trace_id"] for sample in family.samples
                      if sample.exemplar]
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    }  # fmt: skip
    for name in ("inference", "queue", "run"):
        assert trace_id in found[f"model_{name}_duration_seconds"]
    assert "# {" not in httpx.get(f"{server.url}/metrics").text


def test_waiting_spans_are_exported_when_workers_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker exports its own before it ends."""
    collector = Collector()
    for name, value in {**collector.environment, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "models/m/1").mkdir(parents=True)
    onnx_models.save(onnx_models.times(2.0), tmp_path / "models/m/1/model.onnx")
    with cohort(tmp_path / "models", tmp_path, workers=2) as server:
        ids = [caller() for _ in range(20)]
        for _, headers in ids:
            predict(server, headers)
        assert collector.seen == []
        assert server.stop() == 0
    for trace_id, _ in ids:
        found = collector.trace(trace_id, *STAGES)
        assert found["SERVER"].resource["cohort.worker"] in (0, 1, 2)
    collector.close()


def test_a_collector_that_hangs_holds_up_neither_requests_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is bounded, and the drain's time is kept."""
    collector = Collector(hangs=True)
    for name, value in {**collector.environment, "OTEL_BSP_MAX_QUEUE_SIZE": "16"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
    (tmp_path / "models/m/1").mkdir(parents=True)
    onnx_models.save(onnx_models.times(2.0), tmp_path / "models/m/1/model.onnx")
    with cohort(tmp_path / "models", tmp_path, drain_seconds=1) as server:
        for _ in range(20):
            predict(server, caller()[1])
        assert server.stop() == 0
    collector.close()


def test_an_unknown_exporter_ends_the_start(tmp_path: Path) -> None:
    """One line names the variable and what it may be."""
    environment = {"OTEL_TRACES_EXPORTER": "jaeger"}
    ended = run_command("serve", "--port", "0", "--models", tmp_path, env=environment)
    assert ended.returncode == 1
    assert "OTEL_TRACES_EXPORTER must be one of" in ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="rotel has wheels for Linux only")
def test_a_real_collector_takes_the_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotel, over gRPC."""
    rotel = pytest.importorskip("rotel")
    port = free_port()
    program = next(Path(rotel.__file__).parent.rglob("rotel-agent"))
    log = tmp_path / "rotel.log"
    with log.open("wb") as stream:
        agent = subprocess.Popen(
            [program, "start", "--exporter", "blackhole", "--debug-log", "traces",
             "--debug-log-verbosity", "detailed", "--otlp-grpc-endpoint", f"127.0.0.1:{port}",
             "--otlp-http-endpoint", f"127.0.0.1:{free_port()}"],
            stdout=stream, stderr=stream, cwd=tmp_path,
        )  # fmt: skip
    try:
        wait_until(lambda: port_open(port))
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        (tmp_path / "models/m/1").mkdir(parents=True)
        onnx_models.save(onnx_models.times(2.0), tmp_path / "models/m/1/model.onnx")
        with cohort(tmp_path / "models", tmp_path) as server:
            trace_id, headers = caller()
            predict(server, headers)
            assert server.stop() == 0
        wait_until(lambda: re.search(trace_id, log.read_text()) is not None)
        assert all(name in log.read_text() for name in STAGES)
    finally:
        agent.kill()
        agent.wait()


def port_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
