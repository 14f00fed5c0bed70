"""Requests read in one event-loop iteration get the responses that single requests would get."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from uvicorn import Config
from uvicorn.server import ServerState

from cohort.http.fast_path import Hot, protocol_factory
from cohort.http.fast_path.cycle import HotCycle
from cohort.http.fast_path.protocol import HotProtocol
from cohort.http.predict import calls as predict
from cohort.http.v1.calls import match_v1
from cohort.http.v2.infer import match_infer
from cohort.observability.access_log import AccessLog
from cohort.process.service import Service
from cohort.settings import read_settings
from tests import onnx_models
from tests.examples import examples
from tests.fakes import exposed
from tests.http.fakes import FakeTransport, application
from tests.http.wire import TIMES, Answer, chunked, request
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def _slow_runs_are_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be coalesced does not depend on how long runs take on this machine."""
    monkeypatch.setattr("cohort.onnx_engine.batched_session.INLINE_SECONDS", 60.0)
    monkeypatch.setattr("cohort.serving.coalescing.COALESCED_RUN_SECONDS", 60.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models that take one row of numbers, and one that does not."""
    folder = tmp_path_factory.mktemp("together")
    for name, model in {
        "mlp": onnx_models.mlp(),
        "table": onnx_models.table(),
        "reciprocal": onnx_models.reciprocal(),
        "two": onnx_models.two_inputs(),
    }.items():
        onnx_models.save(model, folder / "models" / name / "1/model.onnx")
    return folder


COUNTED = {
    "model_inference_total",
    "model_inference_duration_seconds_count",
    "model_queue_duration_seconds_count",
    "model_batch_requests_sum",
    "model_inflight_requests",
    "model_queue_requests",
}


class Server:
    """A service under the fast protocol, with connections in the test's hand."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.hot = Hot(
            service.core.data_plane,
            service.lifecycle,
            matches=[predict.match_predict, match_v1, match_infer],
            max_body=2**20,
            keep_alive=75.0,
            max_connections=10_000,
        )
        self._config = Config(application, log_config=None, ws="none", lifespan="off")
        self._state = ServerState()
        self.connections: list[tuple[HotProtocol, FakeTransport]] = []

    def connect(self) -> tuple[HotProtocol, FakeTransport]:
        made: HotProtocol = protocol_factory(self.hot)(
            config=self._config, server_state=self._state, app_state={"gate": None, "gone": []}
        )
        transport = FakeTransport()
        made.connection_made(transport)
        self.connections.append((made, transport))
        return made, transport

    async def ask(self, sent: Iterable[bytes], *, at_once: bool) -> list[Answer]:
        """Send each on a separate connection; wait for all answers at once or for each in turn."""
        connections = []
        for one in sent:
            made, transport = self.connect()
            made.data_received(one)
            connections.append(transport)
            if not at_once:
                await until(lambda: transport.written)  # noqa: B023
        await until(lambda: all(transport.written for transport in connections))
        return [transport.answers[0] for transport in connections]

    def counted(self) -> Counter[tuple[str, ...]]:
        """The requests by model, version and code, and how many runs they took part in."""
        found: Counter[tuple[str, ...]] = Counter()
        lines = exposed(self.service.core.metrics).splitlines()
        text = "\n".join(line for line in lines if line.partition("{")[0] in COUNTED)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = sample.labels
                if sample.name == "model_inference_total":
                    key = (labels["model"], labels["version"], labels["code"])
                    found[key] += int(sample.value)
                else:
                    found[sample.name, labels["model"]] += int(sample.value)
        return found


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[Server]:
    """Serve the models; each has answered once, so that its head and its version are known."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("COHORT_")}
    with mock.patch.dict(os.environ, clean, clear=True):
        given = {"models": folder / "models", "state": folder / "s", "cache": folder / "c"}
        service = Service(read_settings({**given, **options}))
    # After a run that a busy machine interrupts for long, a version leaves the event loop.
    with mock.patch("cohort.batching.inline.STALL_SECONDS", PATIENCE):
        async with service.running():
            await until(lambda: service.core.registry.settled)
            server = Server(service)
            await server.ask(GOOD, at_once=False)
            yield server


def ask(body: object, path: str = "/predict", *headers: str) -> bytes:
    return request(path, body, *headers)


def of(model: str, inputs: object, **rest: object) -> bytes:
    return ask({"model": model, "inputs": inputs, **rest})


def v2(model: str, data: object, shape: list[int], *, name: str = "x", **rest: Any) -> bytes:
    tensor = {"name": name, "datatype": rest.pop("datatype", "FP32"), "shape": shape, "data": data}
    return ask({"inputs": [tensor], **rest}, f"/v2/models/{model}/infer")


def v2_binary(rows: list[list[float]], **rest: Any) -> bytes:
    data = np.array(rows, "f4").tobytes()
    size = rest.pop("size", len(data))
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), len(rows[0])],
              "parameters": {"binary_data_size": size}}  # fmt: skip
    head = json.dumps({"inputs": [tensor], **rest}).encode()
    header = f"inference-header-content-length: {len(head)}"
    return ask(head + data, "/v2/models/mlp/infer", header)


def v1(model: str, **document: object) -> bytes:
    return ask(document, f"/v1/models/{model}:predict")


ROW: list[float] = [0.5, -1.25, 3, 1e-3]
ROWS: list[list[float]] = [ROW, [1, 2, 3, 4], [4, 3, 2, 1]]
BINARY = {"binary_data_output": True}
GOOD = (
    of("mlp", {"x": [ROW]}),
    of("table", {"index": [[1]]}),
    of("reciprocal", {"x": [[4.0]]}),
    of("two", {"a": [[1, 2]], "b": [[3, 4]]}),
    ask({"input": [ROW]}, "/models/mlp/predict"),
    ask({"inputs": {"x": [[2, 4, 8, 16]]}}, "/models/mlp/predict"),
    ask({"model": "mlp", "input": [[9, 4, 8, 16]]}),
    of("mlp", {"x": ROWS}),
    of("mlp", {"x": [ROW]}, id="7"),
    of("mlp", {"x": ROWS[:2]}, id='a"%\u00e9'),
    of("mlp", {"x": [ROW]}, outputs=["y"]),
    of("table", {"index": [[1], [2]]}, id="8"),
    ask({"input": ROWS, "id": "9"}, "/models/mlp/predict"),
    of("mlp", {"x": [ROW]}, version="1"),
    of("mlp", {"x": ROWS}, version=1, id="v"),
    ask({"inputs": {"x": [ROW]}}, "/models/mlp/versions/1/predict"),
    v2("mlp/versions/1", ROW, [1, 4]),
    v1("mlp/versions/1", instances=[ROW]),
    v1("mlp", instances=[ROW]),
    v1("mlp", instances=ROWS),
    v1("mlp", inputs=ROWS),
    v1("table", instances=[[0], [1]]),
    v2("mlp", ROW, [1, 4]),
    v2("mlp", [ROW], [1, 4]),
    v2("mlp", [*chain.from_iterable(ROWS)], [3, 4]),
    v2("mlp", ROWS, [3, 4], id="10"),
    v2("mlp", ROW, [1, 4], id=11, outputs=[{"name": "y"}]),
    v2("table", [1, 0], [2, 1], name="index", datatype="INT64"),
    v2("mlp", ROW, [1, 4], parameters=BINARY),
    v2("mlp", ROW, [1, 4], outputs=[{"name": "y", "parameters": {"binary_data": True}}]),
    v2_binary([ROW]),
    v2_binary(ROWS, parameters=BINARY),
    v2_binary([ROW], id="12", parameters=BINARY),
    v2_binary([ROW], id="a longer one", parameters=BINARY),
    v2_binary(ROWS, outputs=[{"name": "y", "parameters": {"binary_data": False}}]),
)
ODD = (
    of("mlp", {"x": [ROW] * 40}),
    of("mlp", {"x": [ROW]}, id=""),
    v2("mlp", ROW, [1, 4], id=""),
    v2("mlp", ROW, [1, 4], parameters={"timeout": 600_000_000}),
    v2("mlp", ROW, [1, 4], outputs=[{"name": "y", "parameters": {"classification": 1}}]),
    v2("mlp", ROW, [1, 4], outputs=[]),
    v2("mlp", ROW, [1, 4], parameters={}),
    v2_binary([[float("nan"), 1, 2, 3]]),
    v1("mlp", instances=[{"x": ROW}]),
    v1("mlp", instances=[ROW], signature_name="serving_default"),
    v1("two", instances=[{"a": [1, 2], "b": [3, 4]}]),
    of("mlp", {"x": [ROW]}, timeout_ms=600_000),
    of("mlp", {"x": [ROW]}, version=True),
    ask({"inputs": {"x": [ROW]}, "version": "1"}, "/models/mlp/versions/1/predict"),
    ask({"inputs": {"x": [ROW]}, "version": "1"}, "/models/mlp/predict"),
    ask({"model": "mlp", "inputs": {"x": [ROW]}}, "/models/mlp/predict"),
)
BAD = (
    of("mlp", {"x": [ROW, [1]]}),
    of("mlp", {"x": [ROW]}, outputs=["z"]),
    of("mlp", {"x": [ROW]}, outputs=["y", "y"]),
    of("mlp", {"x": [ROW]}, outputs=[]),
    of("mlp", {"x": [ROW]}, id=7),
    of("mlp", {"x": [ROW]}, id="7" * 5000),
    v1("mlp", instances=[[1, 2, 3]]),
    v1("mlp", instances=[[1, 2, 3, True]]),
    v1("mlp", instances=[]),
    v1("nobody", instances=[ROW]),
    v1("mlp", instances=[ROW], more=1),
    v2("mlp", ROW, [1, 5]),
    v2("mlp", ROW, [2, 2]),
    v2("mlp", ROW, [4]),
    v2("mlp", ROW, [1, 4], datatype="FP64"),
    v2("mlp", ROW, [1, 4], datatype="FP31"),
    v2("mlp", ROW, [1, 4], name="y"),
    v2("mlp", [1, 2, 3, "4"], [1, 4]),
    v2("mlp", [1, 2, 3, False], [1, 4]),
    v2("mlp", ROW, [1, 4], outputs=[{"name": "z"}]),
    v2("mlp", ROW, [1, 4], outputs=[{"name": "y"}, {"name": "y"}]),
    v2("mlp", ROW, [1, 4], parameters={"binary_data_output": 1}),
    v2("mlp", ROW, [1, 4], more=1),
    v2("nobody", ROW, [1, 4]),
    v2_binary([ROW], size=15),
    v2_binary([ROW], size=17),
    v2_binary([[1, 2, 3]]),
    ask(b"{", "/v2/models/mlp/infer", "inference-header-content-length: 1"),
    ask(b"{", "/v2/models/mlp/infer", "inference-header-content-length: 9"),
    ask(b"{", "/v2/models/mlp/infer", "inference-header-content-length: 5000"),
    ask(b"{", "/v2/models/mlp/infer", "inference-header-content-length: x"),
    ask(b"null", "/v2/models/mlp/infer"),
    ask(b"[", "/v1/models/mlp:predict"),
    of("mlp", {"x": [[1, 2, 3]]}),
    of("mlp", {"x": [[1, 2, 3, "4"]]}),
    of("mlp", {"x": [[1, 2, 3, True]]}),
    of("mlp", {"x": [[1, 2, 3, None]]}),
    of("mlp", {"x": [[1, 2, 3, [4]]]}),
    of("mlp", {"x": [[1, 2, 3, 1e300]]}),
    of("mlp", {"x": [[]]}),
    of("mlp", {"x": []}),
    of("mlp", {"x": [1, 2, 3, 4]}),
    of("mlp", {"y": [ROW]}),
    of("mlp", {"x": [ROW], "z": [ROW]}),
    of("mlp", {"x": [ROW]}, inptus=1),
    of("nobody", {"x": [ROW]}),
    of("mlp", {"x": [ROW]}, version="9"),
    of("mlp", {"x": [ROW]}, version=0),
    of("mlp", {"x": [ROW]}, version="01"),
    ask({"inputs": {"x": [ROW]}, "version": "9"}, "/models/mlp/versions/1/predict"),
    ask({"inputs": {"x": [ROW]}}, "/models/mlp/versions/9/predict"),
    v2("mlp/versions/9", ROW, [1, 4]),
    v1("mlp/versions/9", instances=[ROW]),
    ask({"inputs": {"x": [ROW]}}),
    ask({"model": "table", "inputs": {"x": [ROW]}}, "/models/mlp/predict"),
    ask({"model": 1, "inputs": {"x": [ROW]}}),
    ask({"input": [ROW], "inputs": {"x": [ROW]}}),
    ask(b"{"),
    ask(b'{"inputs": {"x": [[NaN, 1, 2, 3]]}}', "/models/mlp/predict"),
    ask(b""),
    ask([1]),
    of("table", {"index": [[7]]}),  # fails in the run
    of("table", {"index": [[1.5]]}),
    of("reciprocal", {"x": [[0]]}),  # gives infinity
    ask({"input": [ROW]}, "/models/mlp/predict", "content-type: image/png"),
)


def compared(answers: Sequence[Answer]) -> list[tuple[object, ...]]:
    return [answer.compared for answer in answers]


@pytest.fixture
def shared(models: Path) -> Iterator[tuple[asyncio.Runner, Service]]:
    """A service and its event loop, which continues while a test runs it."""
    services: list[Service] = []
    ended = asyncio.Event()

    async def serve() -> None:
        async with serving(models) as server:
            services.append(server.service)
            await ended.wait()

    async def start() -> asyncio.Task[None]:
        task = asyncio.create_task(serve())
        await until(lambda: services or task.done())
        if task.done():  # it failed
            await task
        return task

    async def stop(task: asyncio.Task[None]) -> None:
        ended.set()
        await task

    with asyncio.Runner() as runner:
        task = runner.run(start())
        yield runner, services[0]
        runner.run(stop(task))


@pytest.mark.parametrize("budget", [1.0, -1.0], ids=["run at once", "queued"])
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sent=st.lists(st.sampled_from(GOOD * 3 + ODD + BAD), min_size=2, max_size=80))
def test_coalescing_changes_no_response(
    shared: tuple[asyncio.Runner, Service], budget: float, sent: list[bytes]
) -> None:
    """Responses and metrics are the same, whatever else is read in the same iteration."""
    runner, service = shared

    async def run() -> None:
        server = Server(service)
        await server.ask(GOOD, at_once=False)
        before = server.counted()
        alone = await server.ask(sent, at_once=False)
        between = server.counted()
        together = await server.ask(sent, at_once=True)
        after = server.counted()
        assert compared(together) == compared(alone)
        for name in ("model_inflight_requests", "model_queue_requests"):
            assert not sum(count for key, count in after.items() if key[0] == name)
        told = [key for key in after if len(key) == 3 or "inference" in key[0]]
        assert {key: between[key] - before[key] for key in told} == {
            key: after[key] - between[key] for key in told
        }

    with mock.patch("cohort.serving.coalescing.COALESCED_RUN_SECONDS", budget):
        runner.run(run())


@pytest.mark.parametrize(
    "form",
    [
        lambda row: ask({"input": [row]}, "/models/mlp/predict"),
        lambda row: ask({"input": [row]}, "/models/mlp/versions/1/predict"),
        lambda row: of("mlp", {"x": [row]}, version=1),
        lambda row: v2("mlp/versions/1", row, [1, 4]),
        lambda row: v1("mlp/versions/1", instances=[row]),
    ],
    ids=["a model", "a version", "a version in the body", "V2", "V1"],
)
async def test_requests_of_one_iteration_share_a_run(
    models: Path, form: Callable[[list[float]], bytes]
) -> None:
    """Each gets the response to its own row."""
    rows = [[float(number), 1, 2, 3] for number in range(20)]
    async with serving(models) as server:
        before = server.counted()
        sent = [form(row) for row in rows]
        await server.ask(sent, at_once=False)  # heads differ by length
        alone = compared(await server.ask(sent, at_once=False))
        with (
            mock.patch.object(HotProtocol, "_parse", side_effect=AssertionError),
            mock.patch.object(HotCycle, "proceed", side_effect=AssertionError),
        ):
            together = await server.ask(sent, at_once=True)
        after = server.counted()
    assert compared(together) == alone
    assert len({TIMES.sub(b"", answer.body) for answer in together}) == 20
    assert (
        after["model_batch_requests_sum", "mlp"] - before["model_batch_requests_sum", "mlp"] == 60
    )
    assert after["mlp", "1", "OK"] - before["mlp", "1", "OK"] == 60


def in_two(sent: bytes) -> list[bytes]:
    """The head, and the body in the next segment, as most clients write them."""
    end = sent.index(b"\r\n\r\n") + 4
    return [sent[:end], sent[end:]]


ROADS: dict[str, Callable[[bytes], list[bytes]]] = {
    "in one segment": lambda sent: [sent],
    "the body in the next": in_two,
    "byte by byte": lambda sent: [*in_two(sent)[:1], *(bytes([one]) for one in in_two(sent)[1])],
    "with a query": lambda sent: [sent.replace(b" HTTP", b"?x=1 HTTP", 1)],
    "closing": lambda sent: [sent.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)],
    "HTTP/1.0": lambda sent: [sent.replace(b"HTTP/1.1", b"HTTP/1.0", 1)],
    "HTTP/1.0, kept": lambda sent: [
        sent.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nconnection: keep-alive\r\n", 1)
    ],
}


def in_chunks(sent: bytes) -> bytes:
    """Return the request in chunks, as clients send it that do not know its length."""
    head, _, body = sent.partition(b"\r\n\r\n")
    lines = [one for one in head.split(b"\r\n") if not one.startswith(b"content-length")]
    return b"\r\n".join([*lines, b"transfer-encoding: chunked", b"", chunked(body[:5], body[5:])])


PARSED: dict[str, Callable[[bytes, int], bytes]] = {
    "in chunks": lambda sent, number: in_chunks(sent),
    "a head that nobody sent": lambda sent, number: sent.replace(
        b" HTTP", b"?new=%d HTTP" % number, 1
    ),
}


@pytest.mark.parametrize("road", PARSED)
async def test_parsed_requests_share_runs(models: Path, road: str) -> None:
    """They share them like requests that are looked up."""
    rows = [[float(number), 1, 2, 3] for number in range(12)]
    sent = [
        PARSED[road](ask({"input": [row]}, "/models/mlp/predict"), number)
        for number, row in enumerate(rows)
    ]
    async with serving(models) as server:
        with mock.patch.object(HotCycle, "proceed", side_effect=AssertionError):
            together = await server.ask(sent, at_once=True)
    assert [answer.status for answer in together] == [200] * 12


@pytest.mark.parametrize("road", ROADS)
async def test_every_road_leads_to_shared_runs(models: Path, road: str) -> None:
    """A small request is looked up and read once, however it arrives."""
    bodies = [[float(number), 1, 2, 3] for number in range(12)]
    async with serving(models) as server:
        asked = [ROADS[road](ask({"input": [row]}, "/models/mlp/predict")) for row in bodies]
        for parts in asked:  # heads differ by length
            await server.ask([b"".join(parts)], at_once=False)
        before = server.counted()
        with (
            mock.patch.object(HotProtocol, "_parse", side_effect=AssertionError),
            mock.patch.object(HotCycle, "proceed", side_effect=AssertionError),
        ):
            connections = [server.connect() for _ in asked]
            for (made, _), parts in zip(connections, asked, strict=True):
                for part in parts:
                    made.data_received(part)
            await until(lambda: all(transport.written for _, transport in connections))
        after = server.counted()
    answered = [transport.answers[0] for _, transport in connections]
    assert {one.status for one in answered} == {200}
    says = {"closing": "close", "HTTP/1.0": "close", "HTTP/1.0, kept": "keep-alive"}.get(road)
    assert {one.headers.get("connection") for one in answered} == {says}
    assert after["mlp", "1", "OK"] - before["mlp", "1", "OK"] == 12


async def test_a_caller_that_leaves_at_once_has_nothing_run(models: Path) -> None:
    """The others are answered, and no request stays in progress."""
    async with serving(models) as server:
        before = server.counted()
        connections = [server.connect() for _ in range(4)]
        for made, _ in connections:
            made.data_received(GOOD[0])
        connections[1][1].close()
        connections[1][0].connection_lost(None)
        await until(lambda: connections[3][1].written)
        after = server.counted()
        assert server.service.core.limit.leases == 0
    assert [bool(transport.written) for _, transport in connections] == [True, False, True, True]
    assert after["mlp", "1", "OK"] - before["mlp", "1", "OK"] == 3
    assert not after["mlp", "1", "Cancelled"]


async def test_the_concurrency_limit_admits_part_of_an_iteration(models: Path) -> None:
    """If the limit has no room for a whole iteration, as many get in as would one by one."""
    async with serving(models, max_concurrency=5) as server:
        answers = await server.ask([GOOD[0]] * 8, at_once=True)
        assert Counter(answer.status for answer in answers) == {200: 5, 429: 3}
        assert server.service.core.limit.leases == 0


async def test_a_full_queue_refuses_the_requests_above_its_limit(
    models: Path, tmp_path: Path
) -> None:
    """`max_queue_size` counts requests, coalesced or not; a run at once needs no queue."""
    onnx_models.save(onnx_models.mlp(), tmp_path / "models/mlp/1/model.onnx")
    config = tmp_path / "models/mlp/config.yaml"
    config.write_text("batching: {max_queue_size: 5}")
    for name in ("table", "reciprocal", "two"):
        (tmp_path / "models" / name).symlink_to(models / "models" / name)
    async with serving(tmp_path) as server:
        with mock.patch("cohort.serving.coalescing.COALESCED_RUN_SECONDS", 3600.0):
            answers = await server.ask([GOOD[0]] * 8, at_once=True)
        with mock.patch("cohort.serving.coalescing.COALESCED_RUN_SECONDS", -1.0):
            queued = await server.ask([GOOD[0]] * 8, at_once=True)
    assert Counter(answer.status for answer in answers) == {200: 8}
    assert Counter(answer.status for answer in queued) == {200: 5, 429: 3}


async def test_every_request_gets_a_response_despite_a_bug(models: Path) -> None:
    """The bug may be before the run or after it."""
    for broken in (
        "cohort.http.predict.rows.flat_rows",
        "cohort.codec.ResponseTemplate.write",
        "cohort.serving.coalescing.pack_rows",
        "cohort.batching.inline.InlineRuns.run",
    ):
        async with serving(models) as server:
            # A traceback of each bug would take most of the time.
            with mock.patch(broken, side_effect=ZeroDivisionError), capture_logs():
                answers = await server.ask([GOOD[0]] * 3, at_once=True)
            assert [answer.status for answer in answers] == [500] * 3
            again = await server.ask([GOOD[0]] * 3, at_once=True)
            assert [answer.status for answer in again] == [200] * 3
            assert server.service.core.limit.leases == 0


@pytest.mark.parametrize("logged", [False, True], ids=["", "logged"])
async def test_requests_that_share_a_run_leave_no_reference_cycles(
    models: Path, logged: bool
) -> None:
    """Each is freed at once, without the garbage collector, compressed or not."""
    async with serving(models) as server:
        server.hot.access_log = AccessLog(lambda _: None) if logged else None
        packed = ask(
            {"model": "mlp", "inputs": {"x": [ROW] * 30}}, "/predict", "accept-encoding: gzip"
        )
        gc.collect()
        gc.disable()
        try:
            await server.ask([of("mlp", {"x": [ROW]}), packed] * 20, at_once=True)
            for connection, _ in server.connections:
                connection.connection_lost(None)
            server.connections.clear()
            alive = [one for one in gc.get_objects() if isinstance(one, HotCycle)]
            assert [one for one in alive if one.protocol.hot is server.hot] == []
        finally:
            gc.enable()
