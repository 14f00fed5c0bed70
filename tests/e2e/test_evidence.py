"""What the guard counts is what callers got, whichever API they used."""

from __future__ import annotations

import asyncio
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from math import inf
from time import monotonic
from urllib.parse import urlsplit

import numpy as np
import onnx
import pytest
from grpc import StatusCode, aio

from cohort.rollouts.config import parse_rollouts
from cohort.rollouts.evidence import HUNG_RATIO, HUNG_SECONDS
from cohort.tensors import Arrays
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.rpc.client import DATATYPES, connected, raw_request, told
from tests.waiting import until

ROLLOUT = """
{model}:
  variants: {{stable: {{version: 1, weight: 0}}, canary: {{version: 2, weight: 1}}}}
  sticky: {{header: x-user-id}}
  guard: {{max_error_rate_increase: 0.01}}
"""

HALVES = """
hung:
  variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}
  sticky: {header: x-user-id}
  guard: {max_error_rate_increase: 1}
"""
"""Its guard never decides."""

MODELS: Mapping[str, tuple[onnx.ModelProto, onnx.ModelProto]] = {
    "infinite": (onnx_models.times(2.0), onnx_models.times(inf)),
    "grown": (onnx_models.repeated(1), onnx_models.repeated(200_000)),
    "refused": (onnx_models.gather(size=10), onnx_models.gather(size=3)),
    "late": (onnx_models.uncounted(), onnx_models.loop()),
    "endless": (onnx_models.uncounted(), onnx_models.loop()),
    "hung": (onnx_models.uncounted(), onnx_models.loop()),
}
"""The baseline, which answers, and the canary, which gets all callers."""

CONFIG = "versions: all\nproviders: [cpu]\nbatching: {max_batch_size: 1}\n"

ROW = {"x": np.ones((1, 3), "f4")}
COUNT = {"n": np.array([[10**9]])}
KEYS = map(str, itertools.count())
"""A caller counts once in a while: each request is of another."""

NAMES = {"InvalidInput": 400, "TooLarge": 400, "InferenceFailed": 500, "DeadlineExceeded": 504}
STATUSES = {
    StatusCode.OK: 200,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.INTERNAL: 500,
    StatusCode.DEADLINE_EXCEEDED: 504,
}


class Api(ABC):
    """A way to ask. What cannot be sent by it is the output of the canary of `unsendable`."""

    unsendable = "infinite"
    requests = 1  # that are asked at once

    @abstractmethod
    async def ask(self, server: Cohort, model: str, arrays: Arrays) -> list[int]:
        """Ask, and return the statuses as HTTP has them."""

    @abstractmethod
    async def ask_and_leave(
        self, server: Cohort, model: str, arrays: Arrays, running: Callable[[], bool]
    ) -> None:
        """Ask, and leave as soon as it is `running`."""


class Http(Api):
    """HTTP/1.1 on a new connection, with `requests` pipelined on it."""

    def __init__(
        self,
        path: str,
        body: Callable[[str, Arrays], tuple[Mapping[str, str], bytes]],
        *,
        requests: int = 1,
    ) -> None:
        self._path, self._body, self.requests = path, body, requests

    async def ask(self, server: Cohort, model: str, arrays: Arrays) -> list[int]:
        reader, writer = await self._send(server, model, arrays)
        statuses = []
        for _ in range(self.requests):
            head = await reader.readuntil(b"\r\n\r\n")
            at = head.index(b"content-length: ") + 16
            await reader.readexactly(int(head[at : head.index(b"\r", at)]))
            statuses.append(int(head[9:12]))
        writer.close()
        return statuses

    async def ask_and_leave(
        self, server: Cohort, model: str, arrays: Arrays, running: Callable[[], bool]
    ) -> None:
        _, writer = await self._send(server, model, arrays)
        await until(lambda: asyncio.to_thread(running))
        writer.close()

    async def _send(
        self, server: Cohort, model: str, arrays: Arrays
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = urlsplit(server.url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        sent = b""
        for _ in range(self.requests):
            headers, body = self._body(model, arrays)
            lines = [
                f"POST {self._path.format(model=model)} HTTP/1.1",
                "host: x",
                f"x-user-id: {next(KEYS)}",
                f"content-length: {len(body)}",
                *(f"{name}: {value}" for name, value in headers.items()),
            ]
            sent += "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        writer.write(sent)
        return reader, writer


JSON = {"content-type": "application/json"}


def named(model: str, arrays: Arrays) -> tuple[Mapping[str, str], bytes]:
    """Inputs by name, as the simple API and V1 take them."""
    return JSON, json.dumps(
        {"inputs": {name: one.tolist() for name, one in arrays.items()}}
    ).encode()


def open_inference(model: str, arrays: Arrays) -> tuple[Mapping[str, str], bytes]:
    """Inputs as V2 has them in JSON."""
    return JSON, json.dumps({"inputs": _inputs(arrays, binary=False)}).encode()


def binary(model: str, arrays: Arrays) -> tuple[Mapping[str, str], bytes]:
    """Inputs as V2 has them in binary; an output in binary can be whatever it is."""
    asked = [{"name": "y", "parameters": {"binary_data": model != "infinite"}}]
    document = {"inputs": _inputs(arrays, binary=True), "outputs": asked}
    head = json.dumps(document).encode()
    tail = b"".join(one.tobytes() for one in arrays.values())
    return {"inference-header-content-length": str(len(head))}, head + tail


def _inputs(arrays: Arrays, *, binary: bool) -> list[dict[str, object]]:
    return [
        {"name": name, "shape": one.shape, "datatype": DATATYPES[str(one.dtype)]}
        | ({"parameters": {"binary_data_size": one.nbytes}} if binary else {"data": one.tolist()})
        for name, one in arrays.items()
    ]


class Unary(Api):
    """gRPC, a call for each request. It can send infinity, and nothing larger than a message."""

    unsendable = "grown"

    async def ask(self, server: Cohort, model: str, arrays: Arrays) -> list[int]:
        async with connected(server.grpc) as client:
            call = client.call("ModelInfer", raw_request(model, arrays), metadata=_metadata())
            return [STATUSES[await call.code()]]

    async def ask_and_leave(
        self, server: Cohort, model: str, arrays: Arrays, running: Callable[[], bool]
    ) -> None:
        async with connected(server.grpc) as client:
            call = client.call("ModelInfer", raw_request(model, arrays), metadata=_metadata())
            await until(lambda: asyncio.to_thread(running))
            call.cancel()


class Stream(Api):
    """gRPC, with the request on a stream."""

    unsendable = "grown"

    async def ask(self, server: Cohort, model: str, arrays: Arrays) -> list[int]:
        async with connected(server.grpc) as client:
            stream = client.stream(metadata=_metadata())
            await stream.write(raw_request(model, arrays).SerializeToString())
            message = (await told(stream)).error_message
            await stream.done_writing()
            return [NAMES[message.partition(":")[0]] if message else 200]

    async def ask_and_leave(
        self, server: Cohort, model: str, arrays: Arrays, running: Callable[[], bool]
    ) -> None:
        async with connected(server.grpc) as client:
            stream = client.stream(metadata=_metadata())
            await stream.write(raw_request(model, arrays).SerializeToString())
            await until(lambda: asyncio.to_thread(running))
            stream.cancel()


def _metadata() -> aio.Metadata:
    return aio.Metadata(("x-user-id", next(KEYS)))


APIS: Mapping[str, Api] = {
    "simple API, fast path": Http("/models/{model}/predict", named),
    "simple API, fast path, four at once": Http("/models/{model}/predict", named, requests=4),
    "simple API, ordinary path": Http("/models/{model}/predict?", named),
    "V1": Http("/v1/models/{model}:predict", named),
    "V2 in JSON": Http("/v2/models/{model}/infer", open_inference),
    "V2 in JSON, ordinary path": Http("/v2/models/{model}/infer?", open_inference),
    "V2 in binary": Http("/v2/models/{model}/infer", binary),
    "gRPC": Unary(),
    "gRPC stream": Stream(),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A server of all of MODELS."""
    folder = tmp_path_factory.mktemp("evidence")
    for name, versions in MODELS.items():
        for number, model in enumerate(versions, 1):
            onnx_models.save(model, folder / "models" / name / str(number) / "model.onnx")
        (folder / "models" / name / "config.yaml").write_text(
            CONFIG + ("timeout_ms: 200\n" if name == "late" else "")
        )
    rollouts = folder / "rollouts.yaml"
    others = [ROLLOUT.format(model=name) for name in MODELS if name != "hung"]
    rollouts.write_text("".join([HALVES, *others]))
    with cohort(
        folder / "models", folder, rollouts=rollouts, grpc_port=free_port(), max_body_mb=1,
    ) as started:  # fmt: skip
        yield started


def counted(server: Cohort) -> dict[str, tuple[float, float]]:
    """The outcomes in the evidence against each canary, and how many of them are bad."""
    scrape = Scrape(server.url)
    return {
        model: (
            scrape.value("rollout_evidence_requests", model=model, side="variant"),
            scrape.value("rollout_evidence_bad_requests", model=model, side="variant"),
        )
        for model in MODELS
    }


def keys_on(variant: str) -> Iterator[str]:
    """New callers whom the rollout of `hung` gives a variant."""
    rollout = parse_rollouts(HALVES, "rollouts.yaml")["hung"].rollout
    return (key for key in KEYS if rollout.choose(key).name == variant)


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
async def test_what_counts_is_what_callers_got(server: Cohort, api: Api) -> None:
    """Answers that cannot be sent, runs that the runtime refuses and timeouts count as failures.

    Callers who leave, and inputs that are refused before a run, do not count.
    """
    count = api.requests
    before = counted(server)

    def running() -> bool:
        return Scrape(server.url).value("model_inflight_requests", model="endless") > 0

    await api.ask_and_leave(server, "endless", COUNT, running)
    assert await api.ask(server, "refused", {"index": np.array([[5]])}) == [400] * count
    for model, arrays, status in (
        ("infinite", ROW, 500 if api.unsendable == "infinite" else 200),
        ("grown", ROW, 400 if api.unsendable == "grown" else 200),
        ("refused", {"index": np.array([5])}, 400),
        ("refused", {"index": np.array([2])}, 200),
        ("late", COUNT, 504),
    ):
        assert await api.ask(server, model, arrays) == [status] * count, model
    wanted = {
        "infinite": (count, count * (api.unsendable == "infinite")),
        "grown": (count, count * (api.unsendable == "grown")),
        "refused": (2 * count, count),
        "late": (count, count),
        "endless": (0, 0),
        "hung": (0, 0),
    }
    after = {
        model: (before[model][0] + requests, before[model][1] + bad)
        for model, (requests, bad) in wanted.items()
    }
    try:
        await until(lambda: counted(server) == after)
    except TimeoutError:
        assert counted(server) == after


async def test_callers_who_leave_a_version_that_hangs_have_seen_a_failure(
    server: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count over each API after a long wait; the baseline's times define long."""
    enough = 120

    def baseline() -> float:
        requests = Scrape(server.url).value
        return requests("rollout_evidence_requests", model="hung", side="baseline")

    callers, hung = keys_on("stable"), keys_on("canary")
    monkeypatch.setattr(f"{__name__}.KEYS", callers)
    longest = 0.0
    for _ in range(enough):
        began = monotonic()
        assert await APIS["V1"].ask(server, "hung", {"n": np.array([[1]])}) == [200]
        longest = max(longest, monotonic() - began)
    await until(lambda: baseline() == enough)
    monkeypatch.setattr(f"{__name__}.KEYS", hung)
    long = 2 * max(HUNG_SECONDS, HUNG_RATIO * longest)

    def waited() -> Callable[[], bool]:
        """Return a check that a request has been in progress for long since it was first seen."""
        since: list[float] = []

        def has() -> bool:
            if not since and Scrape(server.url).value("model_inflight_requests", model="hung"):
                since.append(monotonic())
            return bool(since) and monotonic() > since[0] + long

        return has

    asked = [api.ask_and_leave(server, "hung", COUNT, waited()) for api in APIS.values()]
    await asyncio.gather(*asked)
    each = len(APIS), len(APIS)  # of four on a connection one is run, the others wait for it
    try:
        await until(lambda: counted(server)["hung"] == each)
    except TimeoutError:
        assert counted(server)["hung"] == each
