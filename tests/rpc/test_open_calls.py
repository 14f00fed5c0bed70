"""Calls over gRPC that are opened and left so, by the thousand."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from cohort.http2.frames import (
    DATA_FRAME,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    frame,
    settings_frame,
)
from cohort.http2.header_blocks import encode
from cohort.rpc import inference_pb2 as messages
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.rpc.client import PATH, raw_request
from tests.waiting import PATIENCE

MAX_CALLS = 100
FLOWER = np.array([[5.1, 3.5, 1.4, 0.2]], "f4")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Cohort]:
    """It takes 100 calls at a time."""
    port = free_port()
    with cohort(MODELS, tmp_path, grpc_port=port, max_concurrency=MAX_CALLS) as started:
        yield started


def connect(address: str) -> socket.socket:
    """Open a connection that speaks HTTP/2."""
    host, port = address.rsplit(":", 1)
    opened = socket.create_connection((host, int(port)), timeout=PATIENCE)
    opened.sendall(PREFACE + settings_frame({}))
    return opened


def call_frames(number: int, method: str, sent: bytes, flags: int = 0) -> bytes:
    """Return the frames of a call that has sent only these bytes."""
    head = encode(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"{PATH}/{method}".encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
    )
    return frame(HEADERS, END_HEADERS, number, head) + frame(DATA_FRAME, flags, number, sent)


def leave_open(address: str, method: str, sent: bytes, count: int) -> socket.socket:
    """Open a connection with calls that send no more than `sent` each."""
    opened = connect(address)
    for number in range(1, 2 * count, 2):
        opened.sendall(call_frames(number, method, sent))
    return opened


def is_answered(call: int, connection: socket.socket) -> bool:
    """Wait for the end of a call; return True if a message came before it."""
    kinds = []
    with connection.makefile("rb") as received:
        while True:
            head = received.read(9)
            received.read(int.from_bytes(head[:3], "big"))
            if int.from_bytes(head[5:], "big") == call:
                kinds.append(head[3])
                if head[4] & END_STREAM:
                    return DATA_FRAME in kinds


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        ("ModelInfer", b""),
        ("ModelInfer", b"\0\0\0\x40\0" + b"x" * 1000),
        ("ModelStreamInfer", b""),
        ("ModelMetadata", b"\0\0\0"),
    ],
)
def test_calls_that_are_left_open_keep_nobody_out(server: Cohort, method: str, sent: bytes) -> None:
    """The oldest one ends, before its message or within it, not another's call."""
    request = raw_request("iris", {"features": FLOWER}).SerializeToString()
    with ExitStack() as stack:
        channel = stack.enter_context(grpc.insecure_channel(server.grpc))
        infer: grpc.UnaryUnaryMultiCallable[bytes, messages.ModelInferResponse]
        infer = channel.unary_unary(
            f"{PATH}/ModelInfer", response_deserializer=messages.ModelInferResponse.FromString
        )
        for _ in range(3):
            stack.enter_context(leave_open(server.grpc, method, sent, 2 * MAX_CALLS))
        for _ in range(3 * MAX_CALLS):
            assert infer(request, timeout=PATIENCE).outputs


def test_a_call_right_behind_calls_that_are_left_open_is_answered(tmp_path: Path) -> None:
    """The oldest of them makes room, although no task of theirs has started yet."""
    most = 20  # few enough to arrive in one turn of the event loop
    message = raw_request("iris", {"features": FLOWER}).SerializeToString()
    sent = b"\0" + len(message).to_bytes(4, "big") + message
    numbers = range(1, 2 * most, 2)
    last = numbers[-1] + 2
    settings: dict[str, Any] = {"grpc_port": free_port(), "max_concurrency": most}
    with cohort(MODELS, tmp_path, **settings) as server, connect(server.grpc) as connection:
        wait = [call_frames(number, "ModelMetadata", b"\0\0\0") for number in numbers]
        connection.sendall(b"".join(wait) + call_frames(last, "ModelInfer", sent, END_STREAM))
        assert is_answered(last, connection)
