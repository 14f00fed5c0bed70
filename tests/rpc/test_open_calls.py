"""Calls over gRPC that are opened and left so, by the thousand."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

from cohort.http2.frames import DATA_FRAME, END_HEADERS, HEADERS, PREFACE, frame, settings_frame
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


def leave_open(address: str, method: str, sent: bytes, count: int) -> socket.socket:
    """Return a connection that opens calls, and sends no more than `sent` of each."""
    host, port = address.rsplit(":", 1)
    opened = socket.create_connection((host, int(port)), timeout=PATIENCE)
    head = encode(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"{PATH}/{method}".encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
    )
    opened.sendall(PREFACE + settings_frame({}))
    for number in range(1, 2 * count, 2):
        opened.sendall(
            frame(HEADERS, END_HEADERS, number, head) + frame(DATA_FRAME, 0, number, sent)
        )
    return opened


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
