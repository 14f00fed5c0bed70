"""The shipped nginx in front of stand-ins that are as slow as a test wants them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import grpc
import httpx
from grpc import aio

from tests.deploy.balancers import answering, close, nginx
from tests.e2e.processes import free_port
from tests.waiting import PATIENCE, until

GRPC = "/inference.GRPCInferenceService"


def patient(text: str) -> str:
    """Wait five times as long as is shipped, so that no busy machine makes a stand-in seem slow."""
    assert text.count("_read_timeout 1s;") == 3 * ("location @alive" in text)
    return text.replace("_read_timeout 1s;", "_read_timeout 5s;").replace(" 500ms;", " 5s;")


@dataclass
class StandIns:
    """Three replicas that are ready, and hold predictions of `slow` until they are let go."""

    ports: list[int] = field(default_factory=list)
    grpc_ports: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    let_go: threading.Event = field(default_factory=threading.Event)


@asynccontextmanager
async def stand_ins() -> AsyncIterator[StandIns]:
    """Start them."""
    started = StandIns()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            started.asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length", 0)))
            if "deadly" in self.path:
                self.close_connection = True
                return
            if "slow" in self.path:
                started.let_go.wait()
            self.send_response(504 if "late" in self.path else 200 if self.headers["host"] else 400)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET  # noqa: N815 - the name is http.server's

        def log_message(self, *_: object) -> None:
            pass

    class Rpc(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> Any:
            method = details.method

            async def one(_: bytes, __: object) -> bytes:
                started.asked.append(method)
                if method.endswith("/ModelInfer"):
                    await until(started.let_go.is_set)
                return b""

            async def many(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
                async for request in requests:
                    yield request

            if method.endswith("/ModelStreamInfer"):
                return grpc.stream_stream_rpc_method_handler(many)
            return grpc.unary_unary_rpc_method_handler(one)

    async with AsyncExitStack() as stack:
        for _ in range(3):
            started.ports.append(stack.enter_context(answering(Answer)))
            server, port = aio.server(), free_port()
            server.add_generic_rpc_handlers((Rpc(),))
            server.add_insecure_port(f"127.0.0.1:{port}")
            await server.start()
            stack.push_async_callback(server.stop, None)
            started.grpc_ports.append(port)
        stack.callback(started.let_go.set)  # before anybody waits for them to end
        yield started


async def test_a_slow_model_takes_no_replica_out(tmp_path: Path) -> None:
    """Four slow predictions leave all replicas in use; first tries answer all other requests.

    No readiness check, which costs more than a request, precedes the others.
    """
    async with AsyncExitStack() as stack:
        replicas = await stack.enter_async_context(stand_ins())
        balancer = stack.enter_context(
            nginx(replicas.ports, tmp_path, patient, grpc=replicas.grpc_ports)
        )
        stack.callback(replicas.let_go.set)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=balancer.url, timeout=PATIENCE)
        )
        channel = await stack.enter_async_context(
            aio.insecure_channel(
                f"127.0.0.1:{balancer.grpc_port}", options=[("grpc.enable_retries", 0)]
            )
        )
        infer: Any = channel.unary_unary(f"{GRPC}/ModelInfer")
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        predictions = [
            tasks.create_task(http.post("/models/slow/predict", content=b"{}")) for _ in range(4)
        ]
        generation = tasks.create_task(http.post("/v2/models/slow/generate", content=b"{}"))
        inferences = [tasks.create_task(_wait(infer(b""))) for _ in range(4)]
        slow = ("/models/slow/predict", f"{GRPC}/ModelInfer")
        await until(lambda: min(map(replicas.asked.count, slow)) >= 8)  # each one twice
        assert replicas.asked.count("/v2/models/slow/generate") == 1
        for _ in range(6):
            for path in ("/admin/models/iris/load", "/models/iris/predict", "/v2/health/live"):
                assert (await http.post(path, content=b"{}")).status_code == 200, path
            for method in ("ServerLive", "ModelReady", "RepositoryModelLoad"):
                call: Any = channel.unary_unary(f"{GRPC}/{method}")
                assert await call(b"") == b"", method
            stream: Any = channel.stream_stream(f"{GRPC}/ModelStreamInfer")
            assert [message async for message in stream(iter([b"1", b"2"]))] == [b"1", b"2"]
        assert replicas.asked.count("/health/ready") == len(predictions) + len(inferences)
        replicas.let_go.set()
        assert {one.status_code for one in await asyncio.gather(generation, *predictions)} == {200}
        assert set(await asyncio.gather(*inferences)) == {b""}


async def _wait(call: Any) -> bytes:
    return bytes(await call)


async def test_slow_loads_take_no_replica_out(tmp_path: Path) -> None:
    """Three admin requests that each take longer than they may, one a replica: whatever else is
    asked is answered by a first try.
    """

    def impatient(text: str) -> str:
        return patient(text).replace("proxy_read_timeout 10m;", "proxy_read_timeout 500ms;")

    async with AsyncExitStack() as stack:
        replicas = await stack.enter_async_context(stand_ins())
        balancer = stack.enter_context(nginx(replicas.ports, tmp_path, impatient))
        stack.callback(replicas.let_go.set)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=balancer.url, timeout=PATIENCE)
        )
        loads = [http.post("/admin/models/slow/load") for _ in range(3)]
        assert [load.status_code for load in await asyncio.gather(*loads)] == [504] * 3
        for _ in range(6):
            answer = await http.post("/models/iris/predict", content=b"{}")
            assert answer.status_code == 200
        assert "/health/ready" not in replicas.asked


async def test_the_replicas_own_504_is_not_asked_again(tmp_path: Path) -> None:
    """Its time was over: callers get that status and code, and the request has run once."""
    answer, asked = await _ask_through(b"POST /models/late/predict HTTP/1.1\r\nhost: x", tmp_path)
    assert b" 504 " in answer.splitlines()[0]
    assert b'"code":"DeadlineExceeded"' in answer
    assert asked.count("/models/late/predict") == 1


async def test_what_kills_replicas_is_asked_five_times(tmp_path: Path) -> None:
    """Each of three tries a replica, then one that is ready and one more are asked."""
    answer, asked = await _ask_through(b"POST /deadly/predict HTTP/1.1\r\nhost: x", tmp_path)
    assert b" 503 " in answer.splitlines()[0]
    assert b'"code":"NotReady"' in answer
    assert asked.count("/deadly/predict") == 5


async def test_a_caller_who_names_no_host_is_answered(tmp_path: Path) -> None:
    """HTTP/1.0 asks for none; a replica, over HTTP/1.1, does."""
    answer, _ = await _ask_through(b"GET /v2/health/live HTTP/1.0", tmp_path)
    assert b" 200 " in answer.splitlines()[0]


async def _ask_through(head: bytes, folder: Path) -> tuple[bytes, list[str]]:
    """Return nginx's answer to a request without a body, and the replicas' requests by then."""
    async with stand_ins() as replicas:
        with nginx(replicas.ports, folder, patient) as balancer:
            answer = await _ask(balancer.port, head)
        return answer, list(replicas.asked)


async def _ask(port: int, head: bytes) -> bytes:
    """Everything that is answered to a request without a body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    await close(writer)
    return answer
