"""What one could hold of the server over gRPC: connections, calls, and what its library buffers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from tests import onnx_models
from tests.attacks.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    Peer,
    call_headers,
    frame,
    literal,
)
from tests.e2e.processes import Cohort, cohort, free_port
from tests.rpc.client import connected
from tests.waiting import PATIENCE, wait_until

BUDGET = 64  # MiB
FILES = 1024
STREAMS = 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Small budget, few files, and a model that answers with what it was sent."""
    folder = tmp_path_factory.mktemp("grpc-bounds")
    onnx_models.save(onnx_models.identity(), folder / "models" / "same" / "1" / "model.onnx")
    with cohort(
        folder / "models", folder, grpc_port=free_port(), memory_mb=BUDGET, files=FILES
    ) as server:
        yield server


def live(server: Cohort) -> bool:
    return httpx.get(f"{server.url}/health/live", timeout=PATIENCE).status_code == 200


def open_files(server: Cohort) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


async def is_live(server: Cohort) -> bool:
    async with connected(server.grpc) as client:
        return bool((await client.check()).status)


async def test_grpc_connections_leave_the_files_of_http(server: Cohort) -> None:
    """Further ones are closed at once; HTTP answers; there is room again when they are gone."""
    before = open_files(server)
    with ExitStack() as stack:
        peers = [stack.enter_context(closing(Peer(server.grpc))) for _ in range(FILES)]

        def count_open() -> int:
            for peer in peers:
                peer.read()
            return sum(not peer.gone for peer in peers)

        wait_until(lambda: count_open() <= FILES // 4)
        assert count_open() > FILES // 8
        assert live(server)
    wait_until(lambda: open_files(server) <= before + 2)
    assert await is_live(server)


def test_a_connection_has_so_many_calls(server: Cohort) -> None:
    """More than it announces are refused, and the server goes on."""
    with closing(Peer(server.grpc)) as peer:
        for _ in range(STREAMS + 200):
            peer.call()

        def answered() -> bool:
            peer.read(0.1)
            return bool(peer.gone) or len(peer.statuses) >= 200

        wait_until(answered)
        assert peer.gone or len(peer.statuses) < STREAMS
        assert live(server)


def pings(peer: Peer) -> bytes:
    return frame(PING, 0, 0, bytes(8)) * 1000


def settings(peer: Peer) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 100)) * 1000


def resets(peer: Peer) -> bytes:
    """CVE-2023-44487."""
    streams = [peer.next_stream() for _ in range(200)]
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, call_headers())
        + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
        for stream in streams
    )


def continuations(peer: Peer) -> bytes:
    """CVE-2024-27316."""
    stream = peer.next_stream()
    more = frame(CONTINUATION, 0, stream, literal("k", "v" * 5000))
    return frame(HEADERS, 0, stream, call_headers()) + more * 100


def empty_data(peer: Peer) -> bytes:
    stream = peer.next_stream()
    return frame(HEADERS, END_HEADERS, stream, call_headers()) + frame(DATA, 0, stream) * 1000


@pytest.mark.parametrize("flood", [pings, settings, resets, continuations, empty_data])
def test_floods_of_frames_cost_the_process_little(
    server: Cohort, flood: Callable[[Peer], bytes]
) -> None:
    """The connection ends or is read slowly; others are answered, and memory stays."""
    before = resident(server)
    with closing(Peer(server.grpc)) as peer:
        for _ in range(20):
            peer.write(flood(peer))
            peer.read()
            assert live(server)
            if peer.gone:
                break
        assert resident(server) < before + BUDGET
    assert live(server)


def resident(server: Cohort) -> float:
    """The process's memory, in MiB."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = [one for one in text.splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) / 1024
