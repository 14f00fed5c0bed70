"""`cohort bench` with real servers, and its loops and figures alone."""

from __future__ import annotations

import asyncio
import io
import json
import selectors
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, cycle, repeat
from threading import Thread
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from cohort.cli.bench_command.command import INTERRUPTED
from cohort.cli.bench_command.loops import (
    DRAIN_SECONDS,
    UNANSWERED,
    LoadOutcome,
    closed_loop,
    open_loop,
)
from cohort.cli.bench_command.report import at, describe_outcome, draw_outcome, histogram
from cohort.cli.options import MISUSED, OK, PROBLEMS
from tests import onnx_models
from tests.cli.test_cli import run
from tests.e2e.processes import MODELS, ROOT, Cohort, cohort, free_port, quick_command
from tests.waiting import PATIENCE, iterations, wait_until

T = TypeVar("T")

SHORT = ("--seconds", "0.5", "--warm-up", "0", "--json")


class Turned(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when no other work is left."""

    now = 1000.0

    def __init__(self) -> None:
        super().__init__(Turning(self))

    def time(self) -> float:
        return self.now


class Turning(selectors.DefaultSelector):
    """Turns the clock of a loop where it would wait."""

    def __init__(self, loop: Turned) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.now += max(timeout or 0.0, 1e-9)
        return super().select(0)


def turned(loads: Callable[[], Coroutine[Any, Any, T]], monkeypatch: pytest.MonkeyPatch) -> T:
    """Run loops of the benchmark on a separate clock, however busy the machine is."""
    with asyncio.Runner(loop_factory=Turned) as runner:
        monkeypatch.setattr("cohort.cli.bench_command.loops.perf_counter", runner.get_loop().time)
        return runner.run(loads())


ASKED = {
    "url": "http://127.0.0.1:8000",
    "model": "iris",
    "version": None,
    "seconds": 1.0,
    "rows": 1,
    "connections": 8,
    "protocol": "HTTP, JSON",
    "loop": "open",
    "rate": 10.0,
}
"""The request that a report describes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """The bundled models, and one of text, over both protocols."""
    folder = tmp_path_factory.mktemp("bench")
    models = folder / "models"
    for name in ("iris", "digits"):
        (models / name).parent.mkdir(exist_ok=True)
        (models / name).symlink_to(MODELS / name)
    onnx_models.save(onnx_models.strings(), models / "words/1/model.onnx")
    onnx_models.save(onnx_models.identity("FP32", (1, 4)), models / "one/1/model.onnx")
    onnx_models.save(onnx_models.identity("FP32", (3, 4)), models / "three/1/model.onnx")
    with cohort(models, folder, grpc_port=free_port()) as started:
        yield started


def found(*arguments: str) -> dict[str, Any]:
    """The report of a run with more than ten answers: of a longer one where a machine is busy."""
    report: dict[str, Any] = {"answered": 0}
    for seconds in ("0.5", "5", "60"):
        if report["answered"] <= 10:
            done = run("bench", *arguments, *SHORT, "--seconds", seconds)
            assert done.exit_code == OK, done.stderr
            report = json.loads(done.stdout)
    return report


@pytest.mark.parametrize(
    "options",
    [
        ("--model", "iris"),
        ("--model", "iris", "--version", "1", "--binary", "--rows", "3"),
        ("--model", "digits", "--binary", "--connections", "2"),
        ("--model", "words"),
        ("--model", "three"),
        ("--model", "iris", "--rate", "100"),
    ],
)
def test_requests_over_http_are_answered(server: Cohort, options: tuple[str, ...]) -> None:
    """Each form is answered in a closed and in an open loop."""
    report = found(server.url, *options)
    assert report["answered"] > 10
    assert report["failed"] == {}
    assert sum(count for _, count in report["histogram_ms"]) == report["answered"]
    assert report["latency_ms"]["p50"] <= report["latency_ms"]["p99"] <= report["latency_ms"]["max"]
    assert report["loop"] == ("open" if "--rate" in options else "closed")
    assert report["rows"] == (3 if {"--rows", "three"} & {*options} else 1)


@pytest.mark.parametrize("options", [(), ("--rate", "100"), ("--rows", "4", "--version", "1")])
def test_requests_over_grpc_are_answered(server: Cohort, options: tuple[str, ...]) -> None:
    """gRPC gives the same report as HTTP."""
    report = found(server.grpc, "--grpc", "--model", "iris", *options)
    assert report["answered"] > 10
    assert report["protocol"] == "gRPC"


def test_the_version_that_is_named_is_asked(server: Cohort) -> None:
    """Both protocols ask the named version, also if it is not the default one."""
    for where in ((server.url,), (server.grpc, "--grpc")):
        before = answered(server, "digits", "1")
        report = found(*where, "--model", "digits", "--version", "1")
        assert answered(server, "digits", "1") - before >= report["answered"] > 0


@pytest.mark.parametrize("shape", ["features", "=1,4", "features=1,x", "features=-1,4", ""])
def test_a_shape_that_is_none_is_misuse(shape: str) -> None:
    """The message shows how to write a shape."""
    done = run("bench", "--model", "iris", "--shape", shape)
    assert done.exit_code == MISUSED
    assert "--shape must be NAME=SIZE,SIZE" in " ".join(done.stderr.split())


def test_people_are_shown_a_histogram(server: Cohort) -> None:
    """The output also states the limits of the figures."""
    shown = ""
    for seconds in ("0.5", "5", "60"):
        if "█" not in shown:
            done = run("bench", server.url, "--model", "iris", *SHORT[2:-1], "--seconds", seconds)
            assert done.exit_code == OK, done.stderr
            shown = " ".join(done.stdout.split())
    assert f"iris, default version, at {server.url}: HTTP, JSON" in shown
    assert "0 failed, 0 not sent" in shown
    assert "slow answers reduce the load" in shown
    assert "answers/s" in shown
    assert "█" in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "nothing"), "model 'nothing' not found"),
        (("--model", "iris", "--shape", "features=1,3"), "--shape NAME=1,3"),
        (("--model", "iris", "--shape", "x=1,3"), "no input x; it has features"),
        (("--model", "iris", "--key", "kü"), "the key must be ASCII"),
        (("--model", "one", "--rows", "3"), "x has shape [1, 4], which does not allow --rows 3"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(
    server: Cohort, options: tuple[str, ...], said: str
) -> None:
    """The error comes before anything is measured."""
    for where in ((server.url,), (server.grpc, "--grpc")):
        done = run("bench", *where, *options, *SHORT)
        assert done.exit_code == PROBLEMS
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_server_that_hangs_up_is_an_error() -> None:
    """The error is a sentence, although the server describes its model."""

    class HangsUp(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}]}')

        def do_POST(self) -> None:
            self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), HangsUp) as server:
        Thread(target=server.serve_forever).start()
        done = run("bench", f"127.0.0.1:{server.server_port}", "--model", "x", *SHORT)
        server.shutdown()
    assert done.exit_code == PROBLEMS
    assert "rejected the generated inputs" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_server_refuses_is_counted_by_its_status() -> None:
    """A refusal does not count as an answer, however fast it came."""
    statuses = chain([200], repeat(503))

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}]}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(next(statuses), b"{}")

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        Thread(target=server.serve_forever).start()
        url = f"127.0.0.1:{server.server_port}"
        done = run("bench", url, "--model", "x", *SHORT, "--seconds", "3")
        server.shutdown()
    assert done.exit_code == PROBLEMS
    report = json.loads(done.stdout)
    assert report["answered"] == 0
    assert report["failed"].keys() == {"HTTP 503"}
    assert report["failed"]["HTTP 503"] > 1


def test_ctrl_c_before_anything_is_asked_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no output, and the status is the same."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cohort.cli.bench_command.targets.http_target", interrupted)
    done = run("bench", "--model", "x", *SHORT)
    assert done.exit_code == INTERRUPTED
    assert done.stdout == ""


def test_nothing_is_no_time_of_nothing() -> None:
    """Without answers there are no percentiles, and a warning reports it."""
    report = describe_outcome(ASKED, LoadOutcome(1.0))
    assert set(report["latency_ms"].values()) == {None}
    assert report["warnings"] == ["no request was answered; try more --seconds"]
    shown = io.StringIO()
    Console(file=shown).print(draw_outcome(report))
    assert "0 answered, 0 failed, 0 not sent" in shown.getvalue()
    assert "10 requests/s at random times" in shown.getvalue()
    assert "0.0 answers/s" in shown.getvalue()


def test_nobody_there_is_an_error() -> None:
    """A server that cannot be reached is an error over both protocols."""
    for options in ((), ("--grpc",)):
        done = run("bench", "127.0.0.1:1", "--model", "iris", *options, *SHORT)
        assert done.exit_code == PROBLEMS
        assert done.stderr.startswith("Error: ")


def test_the_other_protocols_port_is_named(server: Cohort) -> None:
    """The error names the other port if a server answers in the other protocol."""
    done = run("bench", server.grpc, "--model", "iris", *SHORT)
    assert done.exit_code == PROBLEMS
    assert "use --grpc for a gRPC port" in " ".join(done.stderr.split())
    done = run("bench", server.url.partition("//")[2], "--grpc", "--model", "iris", *SHORT)
    assert done.exit_code == PROBLEMS
    assert "is this the gRPC port" in " ".join(done.stderr.split())


def test_without_grpcio_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `--grpc` needs it."""
    monkeypatch.setitem(sys.modules, "grpc", None)
    done = run("bench", "127.0.0.1:1", "--grpc", "--model", "iris", *SHORT)
    assert done.exit_code == PROBLEMS
    assert "needs grpcio: install the extra cohort[bench]" in " ".join(done.stderr.split())


def test_ctrl_c_ends_it_with_a_report(server: Cohort) -> None:
    """The report has all results so far, and the exit status is that of an interrupted program."""
    before = answered(server, "iris", "1")
    with subprocess.Popen(
        [*quick_command(), "bench", server.url, "--model", "iris",
         "--seconds", "600", "--warm-up", "0", "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        wait_until(lambda: answered(server, "iris", "1") > before + 50)
        process.send_signal(signal.SIGINT)
        report = json.loads(process.communicate(timeout=PATIENCE)[0])
    assert process.returncode == INTERRUPTED
    assert report["answered"] >= 50
    assert 0 < report["seconds"] < 600
    assert report["answers_per_second"] > 0
    assert "stopped after" in report["warnings"][0]


def answered(server: Cohort, model: str, version: str) -> float:
    """Return the number of requests for it that the server has answered."""
    text = server.get("/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "model_inference_total"
        if (sample.labels["model"], sample.labels["version"]) == (model, version)
    )


@pytest.mark.parametrize("loop", ["open", "closed"])
async def test_a_loop_that_is_ended_early_tells_what_it_saw(loop: str) -> None:
    """A loop returns its results so far when it ends early, except during its warm-up."""
    enough = asyncio.Event()
    asked = 0

    async def send(_: int) -> str:
        nonlocal asked
        asked += 1
        if asked == 20:
            enough.set()
        await iterations()
        return ""

    def start(warm_up: float) -> asyncio.Task[LoadOutcome]:
        return asyncio.create_task(
            open_loop(send, rate=2000, callers=2, seconds=600, warm_up=warm_up)
            if loop == "open"
            else closed_loop(send, callers=2, seconds=600, warm_up=warm_up)
        )

    running = start(0)
    await enough.wait()
    running.cancel()
    outcome = await running
    assert outcome.stopped
    assert len(outcome.latencies) >= 20
    assert 0 < outcome.seconds < 600

    warming = start(600)
    await iterations()
    warming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await warming


class Stalling:
    """Answers one request at a time, the first after `seconds` and each later one after `later`."""

    def __init__(self, seconds: float, later: float = 0.0) -> None:
        self.seconds, self.later = seconds, later
        self.lock = asyncio.Lock()

    async def __call__(self, _: int) -> str:
        async with self.lock:
            seconds, self.seconds = self.seconds, self.later
            if seconds:
                over = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_later(seconds, over.set_result, None)
                await over
        return ""


def test_an_open_loop_counts_what_those_waited_who_came_during_a_stall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each from when it was due; a closed loop sees the stall once for each caller."""

    async def loads() -> tuple[LoadOutcome, LoadOutcome]:
        return (
            await open_loop(Stalling(0.4), rate=200, callers=1, seconds=0.8, warm_up=0),
            await closed_loop(Stalling(0.4, 0.01), callers=1, seconds=0.8, warm_up=0),
        )

    opened, closed = turned(loads, monkeypatch)
    assert len([one for one in opened.latencies if one > 0.1]) > 20
    assert [one for one in closed.latencies if one > 0.1] == [pytest.approx(0.4)]


def test_an_open_loop_asks_as_often_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends at its rate, with or without answers; requests over the limit are counted."""
    monkeypatch.setattr("cohort.cli.bench_command.loops.MAX_IN_FLIGHT", 10)

    async def loads() -> tuple[LoadOutcome, LoadOutcome]:
        asked = partial(open_loop, rate=300, callers=1, seconds=0.6, warm_up=0, seed=1)
        return await asked(Stalling(0.3)), await asked(Stalling(0))

    outcome, again = turned(loads, monkeypatch)
    assert outcome.not_sent > 20
    assert again.not_sent == 0
    assert len(outcome.latencies) + outcome.not_sent == len(again.latencies)


def test_a_server_that_does_not_keep_up_is_said_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rate counts answers within the time; requests still open are waited for."""

    async def loads() -> LoadOutcome:
        return await open_loop(Stalling(0.02, 0.02), rate=300, callers=1, seconds=0.5, warm_up=0)

    outcome = turned(loads, monkeypatch)
    assert 0 < outcome.answered < len(outcome.latencies) / 2
    assert outcome.drained > 0
    report = describe_outcome(ASKED, outcome)
    assert report["answers_per_second"] == round(outcome.answered / 0.5, 1)
    assert report["answered"] == len(outcome.latencies)
    assert any("did not keep up" in one for one in report["warnings"])


def test_what_is_never_answered_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without a response counts as a failure."""

    async def send(number: int) -> str:
        if number % 2:
            await asyncio.Event().wait()
        return ""

    async def loads() -> LoadOutcome:
        return await open_loop(send, rate=200, callers=2, seconds=0.3, warm_up=0)

    outcome = turned(loads, monkeypatch)
    assert outcome.failures[UNANSWERED] == pytest.approx(len(outcome.latencies), abs=1)
    assert outcome.drained == pytest.approx(DRAIN_SECONDS)


def test_a_client_that_was_late_says_so() -> None:
    """Lateness is compared with the time that answers took."""
    outcome = LoadOutcome(1.0, 100, [0.010] * 100, [0.0] * 98 + [0.2] * 2)
    (warning,) = describe_outcome(ASKED, outcome)["warnings"]
    assert "200 ms late" in warning
    outcome = LoadOutcome(1.0, 100, [0.010] * 100, [0.001] * 100)
    report = describe_outcome(ASKED, outcome)
    assert report["warnings"] == []
    assert report["latency_ms"]["mean"] == report["latency_ms"]["max"] == 10.0


def test_what_may_be_wrong_with_the_figures_is_said() -> None:
    """Sentences report late answers, unsent requests, failures, and a slow client."""
    outcome = LoadOutcome(
        10.0, 80, [0.01] * 100, [0.0] * 100, 2.5, Counter({"HTTP 500": 7}), not_sent=13, busy=0.9
    )
    assert describe_outcome(ASKED, outcome)["warnings"] == [
        "the server did not keep up: 80 of 120 requests were answered in time, "
        "the last 2.5 s after the end",
        "this client used 0.90 of a core: it may be the bottleneck",
        "13 requests were not sent because too many were in flight",
        "7 requests failed; latencies leave them out",
    ]


def test_the_warm_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures do not count among the times either."""
    answers = cycle(["", "HTTP 500"])
    answer = Stalling(0.01, 0.01)
    asked = 0

    async def send(caller: int) -> str:
        nonlocal asked
        asked += 1
        began = asyncio.get_running_loop().time()
        await answer(caller)
        return "warm" if began < Turned.now + 0.2 else next(answers)

    async def loads() -> LoadOutcome:
        return await closed_loop(send, callers=2, seconds=0.3, warm_up=0.3)

    outcome = turned(loads, monkeypatch)
    assert outcome.failures["warm"] == 0
    assert 0 < len(outcome.latencies) < asked
    assert outcome.seconds == pytest.approx(0.3)
    assert abs(outcome.failures["HTTP 500"] - len(outcome.latencies)) <= 2
    assert outcome.answered <= len(outcome.latencies)


@given(st.lists(st.floats(1e-6, 100), min_size=1))
def test_all_that_was_counted_is_in_the_histogram(values: list[float]) -> None:
    """Each value is in a bucket that ends above it, and not far above."""
    ordered = sorted(values)
    buckets = histogram(ordered)
    assert sum(count for _, count in buckets) == len(values)
    assert buckets[0][0] / 1.26 <= ordered[0] * 1.0001
    assert ordered[-1] <= buckets[-1][0] * 1.0001
    assert at(1.0, ordered) == ordered[-1]
    assert at(0.0, ordered) == ordered[0]


def test_percentiles_are_values_that_were_seen() -> None:
    """The p99 of a hundred values is the ninety-ninth."""
    hundred = [float(one) for one in range(1, 101)]
    assert [at(share, hundred) for share in (0.5, 0.9, 0.99)] == [50, 90, 99]
    assert at(0.5, []) is None
    assert histogram([]) == []
