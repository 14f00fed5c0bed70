"""Limits of one gRPC client: its connections, its calls, and the memory its messages take."""

from __future__ import annotations

import gzip
import secrets
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests import onnx_models
from tests.attacks.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Peer,
    call_headers,
    frame,
    literal,
    message,
)
from tests.e2e.processes import Cohort, cohort, free_port
from tests.rpc.client import connected, raw_request, told
from tests.waiting import PATIENCE, wait_until

BUDGET = 64  # MiB
FILES = 1024
STREAMS = 1024
PADDED = 8
MORE_MEMORY = 320 << 20  # forty messages unpacked at once, which the allocator keeps
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A server with a small budget, few files, and a model that returns its input."""
    folder = tmp_path_factory.mktemp("grpc-bounds")
    onnx_models.save(onnx_models.identity(), folder / "models" / "same" / "1" / "model.onnx")
    with cohort(
        folder / "models",
        folder,
        grpc_port=free_port(),
        memory_mb=BUDGET,
        under=["prlimit", f"--nofile={FILES}:{FILES}"],
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
    """Calls beyond the announced number are refused, and the server stays live."""
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


def unknown_calls(peer: Peer) -> bytes:
    streams = [peer.next_stream() for _ in range(200)]
    block = call_headers("/of/nobody")
    return b"".join(frame(HEADERS, END_HEADERS | END_STREAM, one, block) for one in streams)


def widening(peer: Peer) -> bytes:
    return frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * 1000


def padding(peer: Peer) -> bytes:
    stream = peer.next_stream()
    data = frame(DATA, PADDED, stream, b"\0") * 1000
    return frame(HEADERS, END_HEADERS, stream, call_headers()) + data


def late_data(peer: Peer) -> bytes:
    stream = peer.next_stream()
    begun = frame(HEADERS, END_HEADERS, stream, call_headers())
    return begun + frame(RST_STREAM, 0, stream, b"\0\0\0\x08") + frame(DATA, 0, stream, b"x") * 1000


FLOODS = [resets, unknown_calls, widening, padding, late_data]


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


def test_resets_of_one_address_are_bounded_on_however_many_connections(server: Cohort) -> None:
    """Each connection sends fewer than allowed; one that sends no resets stays open."""
    with ExitStack() as stack:
        quiet = stack.enter_context(closing(Peer(server.grpc)))
        peers = [stack.enter_context(closing(Peer(server.grpc))) for _ in range(16)]

        def any_gone() -> bool:
            for peer in peers:
                if not peer.gone:
                    peer.write(resets(peer))
                    peer.read()
            return any(peer.gone for peer in peers)

        wait_until(any_gone)
        quiet.read(0.01)
        assert not quiet.gone
    assert live(server)


def resident(server: Cohort) -> float:
    """The process's memory, in MiB."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = [one for one in text.splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


# -- what the library holds


def held(server: Cohort) -> float:
    """Return the memory that requests hold, in MiB, as the server counts it."""
    lines = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text.splitlines()
    (line,) = [one for one in lines if one.startswith("memory_held_bytes ")]
    return float(line.split()[1]) / 2**20


def test_messages_that_arrive_count(server: Cohort) -> None:
    """Halves of messages fill the budget; who comes then is refused, and all is given back."""
    part = message(bytes(24 * 2**20), announced=30 * 2**20)
    before = resident(server)
    with ExitStack() as stack:
        peers = [stack.enter_context(closing(Peer(server.grpc))) for _ in range(8)]
        for peer in peers:
            peer.send(peer.call(), part)

        def count_refused() -> int:
            for peer in peers:
                peer.read()
            return sum(b"Overloaded" in one for peer in peers for one in peer.statuses.values())

        wait_until(lambda: count_refused() >= 6)
        assert BUDGET / 4 < held(server) <= BUDGET
        assert resident(server) < before + 4 * BUDGET
        assert live(server)
    wait_until(lambda: held(server) == 0)


def test_one_stream_after_the_other_counts_as_well(server: Cohort) -> None:
    """They count on one connection, also after a call that is served."""
    with closing(Peer(server.grpc)) as peer:
        peer.send(peer.call("ServerLive"), message(b""), end=True)
        for _ in range(8):
            peer.send(
                peer.call("ModelStreamInfer"), message(bytes(12 * 2**20), announced=20 * 2**20)
            )

        def refused() -> bool:
            peer.read(0.1)
            return any(b"Overloaded" in one for one in peer.statuses.values())

        wait_until(refused)
        assert held(server) <= BUDGET
    wait_until(lambda: held(server) == 0)


OPEN = ["ServerLive", "/grpc.health.v1.Health/Watch", REFLECTION]


@pytest.mark.parametrize("method", OPEN)
def test_calls_that_need_no_key_are_small(server: Cohort, method: str) -> None:
    """Large messages to them are refused as they arrive, and hold nothing of the budget."""
    part = message(bytes(8 * 2**20), announced=30 * 2**20)
    most = 0.0
    with ExitStack() as stack:
        for _ in range(6):
            peer = stack.enter_context(closing(Peer(server.grpc)))
            stream = peer.call(method)
            peer.send(stream, part)
            most = max(most, held(server))
            wait_until(partial(ended, peer, stream))
            assert b"TooLarge" in peer.statuses[stream]
    assert most < 2
    with closing(Peer(server.grpc)) as peer:
        stream = peer.call(method)
        peer.send(stream, message(bytes(5000)))
        wait_until(partial(ended, peer, stream))
        assert b"TooLarge" in peer.statuses[stream]


def ended(peer: Peer, stream: int) -> bool:
    peer.read(0.1)
    return stream in peer.statuses


async def test_calls_that_need_no_key_leave_room_for_the_others(server: Cohort) -> None:
    """Idle calls are limited in number and end soon; a caller with a key is answered."""
    with ExitStack() as stack:
        peers = [stack.enter_context(closing(Peer(server.grpc))) for _ in range(3)]
        for peer in peers:
            peer.read(0.1)
            for number in range(600):
                peer.call(OPEN[number % 3])
                peer.read()

        def count_ended(why: bytes = b"") -> int:
            for peer in peers:
                peer.read()
            return sum(why in one for peer in peers for one in peer.statuses.values())

        wait_until(lambda: count_ended() >= 1800 - STREAMS)
        assert count_ended(b"Overloaded") > 100  # the library itself cancels others
        async with connected(server.grpc) as client:
            assert (await client.infer("same", {"x": np.ones((1, 3), "f4")}))["y"].shape == (1, 3)
        wait_until(lambda: count_ended() == 1800)
        assert await is_live(server)


def test_a_call_without_its_message_ends(server: Cohort) -> None:
    """It ends after the time for which a body may pause, over gRPC as over HTTP."""
    with closing(Peer(server.grpc)) as peer:
        begun = peer.call()
        peer.send(peer.call(), message(b"", announced=100))
        wait_until(partial(ended, peer, begun))
        assert b"InvalidInput" in peer.statuses[begun]
        wait_until(lambda: ended(peer, begun) and len(peer.statuses) == 2)


def test_heads_of_calls_count(server: Cohort) -> None:
    """They use a part of the budget; then waiting calls are ended.

    All memory is released at the end.
    """
    more = [(f"x{number}", "1") for number in range(400)]
    before = resident(server)
    with ExitStack() as stack:
        peers = [stack.enter_context(closing(Peer(server.grpc))) for _ in range(4)]
        for peer in peers:
            for _ in range(1000):
                peer.call("ModelStreamInfer", more)
            peer.read()
        wait_until(lambda: held(server) > BUDGET / 8)
        assert held(server) <= BUDGET / 4 + 1
        assert resident(server) < before + 2 * BUDGET
        assert live(server)
    wait_until(lambda: held(server) == 0)


async def test_long_metadata_is_no_message(server: Cohort) -> None:
    """Calls with a long token each, next to a waiting stream, leave no memory held."""
    async with connected(server.grpc) as client:
        stream = client.stream()
        asked = raw_request("same", {"x": np.ones((1, 3), "f4")})
        request = asked.SerializeToString()
        await stream.write(request)
        await told(stream)
        for _ in range(400):
            token = f"Bearer {secrets.token_urlsafe(4500)}"
            await client.call("ModelInfer", asked, metadata=[("authorization", token)])
        wait_until(lambda: held(server) < 0.25)
        await stream.write(request)
        assert not (await told(stream)).error_message
        await stream.done_writing()


@pytest.mark.parametrize("piece", [1000, 1 << 17])
def test_too_long_metadata_ends_its_call_alone(server: Cohort, piece: int) -> None:
    """It ends in any frames; before, it ended the connection with the calls of all others."""
    with closing(Peer(server.grpc)) as peer:
        begun = peer.call("ModelStreamInfer")
        stream = peer.next_stream()
        block = call_headers("ModelInfer", [("token", "x" * 60_000)])
        parts = [block[at : at + piece] for at in range(0, len(block), piece)]
        for number, part in enumerate(parts):
            kind, flags = CONTINUATION if number else HEADERS, END_HEADERS * (part is parts[-1])
            peer.write(frame(kind, flags, stream, part))
        wait_until(partial(ended, peer, stream))
        assert b"the headers are larger than" in peer.statuses[stream]
        peer.send(peer.call("ServerLive"), message(b""), end=True)
        wait_until(lambda: ended(peer, stream + 2))
        assert begun not in peer.statuses
        assert not peer.gone


@pytest.mark.parametrize("flood", FLOODS)
def test_calls_and_frames_that_bring_nothing_are_counted(
    server: Cohort, flood: Callable[[Peer], bytes]
) -> None:
    """The connection is closed, as for pings; who still sends may not be able to read why."""
    with closing(Peer(server.grpc)) as peer:
        for _ in range(40):
            peer.write(flood(peer))
            peer.read()

        def gone() -> bool:
            peer.read(0.1)
            return bool(peer.gone)

        wait_until(gone)
    assert live(server)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_messages_are_unpacked_within_the_budget(
    server: Cohort, pack: Callable[[bytes], bytes]
) -> None:
    """Many small ones that grow a thousandfold are refused, one by one, while others are served."""
    bomb = message(pack(bytes(40 * 2**20)), compressed=True)
    encoding = "gzip" if pack is gzip.compress else "deflate"
    before = resident(server)
    with closing(Peer(server.grpc)) as peer:
        for _ in range(40):
            peer.send(peer.call(more=[("grpc-encoding", encoding)]), bomb, end=True)

        def answered() -> bool:
            peer.read(0.1)
            return len(peer.statuses) >= 40

        wait_until(answered)
        assert any(b"Overloaded" in one for one in peer.statuses.values())
        assert resident(server) < before + 4 * BUDGET
    wait_until(lambda: held(server) == 0)


async def test_responses_that_nobody_reads_count(server: Cohort) -> None:
    """Unread responses fill the budget and end with their connections; small calls are served."""
    # One is more than a quarter of the budget. Smaller ones did not come to that on a busy machine:
    # by the time that the last was there, the first had ended.
    array = np.ones((1_500_000, 3), "<f4")
    request = message(raw_request("same", {"x": array}).SerializeToString())
    with closing(Peer(server.grpc, window=0)) as peer:
        peer.send(peer.call(), request, end=True)
        wait_until(lambda: held(server) > BUDGET / 4)
        async with connected(server.grpc) as client:
            assert (await client.infer("same", {"x": np.ones((1, 3), "f4")}))["y"].shape == (1, 3)

        def gone() -> bool:
            peer.read()
            return bool(peer.gone)

        wait_until(gone)
        wait_until(lambda: held(server) == 0)


async def test_idle_streams_stay(server: Cohort) -> None:
    """A stream that is idle for a while holds no memory, and continues when others are refused."""
    with ExitStack() as stack:
        async with connected(server.grpc) as client:
            stream = client.stream()
            request = raw_request("same", {"x": np.ones((1, 3), "f4")}).SerializeToString()
            await stream.write(request)
            await told(stream)
            peers = [stack.enter_context(closing(Peer(server.grpc))) for _ in range(4)]
            for peer in peers:
                peer.send(peer.call(), message(bytes(24 * 2**20), announced=30 * 2**20))
            wait_until(lambda: held(server) > BUDGET / 4)
            await stream.write(request)
            assert not (await told(stream)).error_message
            await stream.done_writing()
    wait_until(lambda: held(server) == 0)


@pytest.mark.parametrize("method", ["ModelInfer", "ServerMetadata", "/grpc.health.v1.Health/Check"])
@pytest.mark.parametrize("frames", [1, 2])
def test_a_call_of_one_message_takes_no_second(server: Cohort, method: str, frames: int) -> None:
    """It is refused, and not answered as if the second had not been there."""
    one = b""
    if method == "ModelInfer":
        one = raw_request("same", {"x": np.ones((1, 3), "f4")}).SerializeToString()
    sent = [message(one), message(one)] if frames == 2 else [message(one) * 2]
    with closing(Peer(server.grpc)) as peer:
        stream = peer.next_stream()
        data = b"".join(frame(DATA, 0, stream, content) for content in sent)
        begin = frame(HEADERS, END_HEADERS, stream, call_headers(method))
        peer.write(begin + data + frame(DATA, 1, stream))

        def answered() -> bool:
            peer.read(0.1)
            return stream in peer.statuses

        wait_until(answered)
        assert b"more than one" in peer.statuses[stream].replace(b"%20", b" ")
