"""Clients of each API, which send random requests and check the responses until the soak ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from grpc import StatusCode, aio

from tests.e2e.load import encode
from tests.e2e.processes import Cohort
from tests.rpc.client import Client, arrays_of, raw_request
from tools.soak.ledger import CHANGING, LEFT, SLOW, STEADY, Ledger

GRPC_CODES = {
    StatusCode.INVALID_ARGUMENT: "InvalidInput",
    StatusCode.UNAVAILABLE: "NotReady",
    StatusCode.NOT_FOUND: "ModelNotFound",
    StatusCode.DEADLINE_EXCEEDED: "DeadlineExceeded",
    StatusCode.RESOURCE_EXHAUSTED: "Overloaded",
}

BAD: tuple[object, ...] = (
    {"inputs": {"x": [[1, 2]]}},
    {"inputs": {"x": [[1, 2, "3"]]}},
    {"inputs": {"z": [[1, 2, 3]]}},
    {"inputs": {"x": [[1, 2, 3]]}, "outputs": ["z"]},
    {"inputs": 3},
    [],
)
"""Invalid requests."""


class Clients:
    """Makes clients of one server.

    over: Set when the clients must end; each reads its last answer first.
    """

    def __init__(self, server: Cohort, ledger: Ledger, over: asyncio.Event) -> None:
        self._address = urlsplit(server.url)
        self._ledger = ledger
        self._over = over

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until the soak has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    async def rest(self, random: Random) -> None:
        """Send valid and invalid requests over the simple API and V2 on one connection."""
        reader, writer = await self._connect()
        ask: list[Callable[[Random, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]]
        ask = [self._predict, self._predict, self._predict, self._infer, self._bad]
        try:
            while not self._over.is_set():
                await random.choice(ask)(random, reader, writer)
                await self.pause(random.choice((0.0, 0.002, 0.02)))
        finally:
            writer.close()

    async def leaver(self, random: Random) -> None:
        """Send requests, and leave before the answer or in the middle of the request."""
        while not self._over.is_set():
            _, writer = await self._connect()
            data = encode(f"/models/{LEFT}/predict", {"inputs": {"x": [[1, 2, 3]]}})
            writer.write(data[: random.choice((len(data), random.randrange(len(data))))])
            await self.pause(random.choice((0.0, 0.001, 0.01)))
            if random.random() < 0.5:
                writer.transport.abort()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            await self.pause(0.02)

    async def grpc(self, random: Random, client: Client) -> None:
        """Send unary calls."""
        while not self._over.is_set():
            model, x = _draw(random)
            self._ledger.sent += 1
            try:
                answer = await client.call("ModelInfer", raw_request(model, {"x": x}))
            except aio.AioRpcError as error:
                code = GRPC_CODES.get(error.code(), error.code().name)
                self._ledger.heard(model, code, told=error.details())
            else:
                self._ledger.heard(model, "OK")
                self._ledger.check(model, x, arrays_of(answer)["y"], answer.model_version)
            await self.pause(random.choice((0.0, 0.01)))

    async def stream(self, random: Random, client: Client) -> None:
        """Send streams of several requests each; the answers must come in order."""
        while not self._over.is_set():
            asked = [_draw(random) for _ in range(random.randint(1, 100))]
            call = client.stream()
            self._ledger.sent += len(asked)

            async def send(call: Any = call, asked: Any = asked) -> None:
                for model, x in asked:
                    await call.write(raw_request(model, {"x": x}).SerializeToString())
                await call.done_writing()

            sending = asyncio.create_task(send())
            for model, x in asked:
                answer: Any = await call.read()
                code = answer.error_message.partition(":")[0] or "OK"
                self._ledger.heard(model, code, told=answer.error_message)
                if code == "OK":
                    y = arrays_of(answer.infer_response)["y"]
                    self._ledger.check(model, x, y, answer.infer_response.model_version)
            await sending
            assert await call.read() is aio.EOF
            await self.pause(0.05)

    # -- one request

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._address.hostname, self._address.port)

    async def _predict(self, random: Random, *connection: Any) -> None:
        model, x = _draw(random)
        body: dict[str, object] = {"inputs": {"x": x.tolist()}}
        if model == SLOW and random.random() < 0.5:
            body["timeout_ms"] = random.choice((1, 5, 20))
        status, answer = await self._exchange(f"/models/{model}/predict", body, *connection)
        self._ledger.heard(model, answer.get("code", "OK"), told=answer)
        if status == 200:
            self._ledger.check(model, x, answer["outputs"]["y"], answer["version"])

    async def _infer(self, random: Random, *connection: Any) -> None:
        model, x = _draw(random)
        tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.ravel().tolist()}
        id_ = str(random.randrange(10**6))
        body = {"id": id_, "inputs": [tensor]}
        status, answer = await self._exchange(f"/v2/models/{model}/infer", body, *connection)
        self._ledger.heard(model, answer.get("code", "OK"), told=answer)
        if status == 200:
            if answer["id"] != id_:
                self._ledger.wrong.append(f"{id_} was asked, {answer} heard")
            self._ledger.check(model, x, answer["outputs"][0]["data"], answer["model_version"])

    async def _bad(self, random: Random, *connection: Any) -> None:
        bad = random.choice(BAD)
        _, answer = await self._exchange(f"/models/{STEADY}/predict", bad, *connection)
        self._ledger.heard(STEADY, answer.get("code", "OK"), told=answer)

    async def _exchange(
        self, path: str, body: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, dict[str, Any]]:
        self._ledger.sent += 1
        writer.write(encode(path, body))
        head = await reader.readuntil(b"\r\n\r\n")
        at = head.index(b"content-length: ") + 16
        text = await reader.readexactly(int(head[at : head.index(b"\r", at)]))
        return int(head[9:12]), json.loads(text)


def _draw(random: Random) -> tuple[str, np.ndarray[Any, Any]]:
    model = random.choice((STEADY, STEADY, STEADY, STEADY, SLOW, CHANGING))
    rows, width = random.choice((1, 1, 1, 3)), 4 if model == SLOW else 3
    values = [random.randint(-1000, 1000) for _ in range(rows * width)]
    return model, np.array(values, "f4").reshape(rows, width)
