"""HTTP in arbitrary pieces on a real connection: read as h11 reads it, whatever heads are cached.

An input is two bytes that choose where to cut, and the bytes that a caller sends.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import h11
from structlog.testing import capture_logs

from cohort.http.fast_path.head_cache import HeadCache
from tests.http.fakes import FakeServer
from tests.http.fast_path.known_heads import GENERATED_ID, REQUESTS, forgetful, know, known_heads
from tests.http.wire import answers
from tests.waiting import iterations

WORDS = re.compile(
    rb"content-length: [0-9]+"
    rb'(\r\nconnection: close\r\n\r\n{"error":"not a valid HTTP request: )[^"]*'
)
"""Part of the error for bytes with several faults. Its text depends on where they are cut."""

MAX_PIECES = 8
PIPELINE = 10
"""Iterations of the event loop within which the next pipelined request must be answered."""

UPGRADE = b"\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"

SEEDS = [
    *(b"\0\0" + one for one in REQUESTS),
    *(b"\1\7" + one + other for one, other in pairwise(REQUESTS)),
    *(b"\2\7" + one * 3 for one in REQUESTS),
    b"\0\1POST /hot HTTP/1.1\r\nhost: x\r\nx: a RTSP/1.0\r\ncontent-length: 1\r\n\r\n1",
    *(b"\0\0" + REQUESTS[0].replace(b"\r\n\r\n", UPGRADE) + one for one in REQUESTS),
]
TOKENS = (
    b"POST /hot HTTP/1.1\r\nhost: x\r\n",
    b"GET /asgi HTTP/1.1\r\nhost: x\r\n\r\n",
    b"content-length: 1\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
    b"expect: 100-continue\r\n",
    b"upgrade: h2c\r\n",
    b"x-request-id: a\r\n",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b" RTSP/1.0",
)


class Asked(NamedTuple):
    """A request as h11 reads it."""

    method: bytes
    body: bytes


class Seen(NamedTuple):
    """The observed outcome of a connection."""

    written: bytes
    closed: bool
    asked: list[object]
    refusals: list[str]

    @property
    def compared(self) -> tuple[object, ...]:
        """The part that must not depend on where the bytes are cut."""
        return WORDS.sub(b"\\1", self.written), self.closed, self.asked, self.refusals


def check(data: bytes) -> None:
    """Fail if a request gets another's answer, or if cuts or cached heads change the result."""
    sent = data[2:]
    pieces = [*cut(sent, random.Random(data[:2]))]
    known_heads()  # which needs a separate event loop, once
    with asyncio.Runner() as loop:
        seen = loop.run(observe(pieces, forgetful()))
        known = loop.run(observe(pieces, known_heads()))
        whole = loop.run(observe([sent], forgetful()))
    assert known.compared == seen.compared, "known heads change it"
    assert whole.compared == seen.compared, "pieces change it"
    check_answers(seen.written, [*read(sent)])


def cut(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """Cut `data` into a few pieces."""
    count = chance.randrange(MAX_PIECES)
    places = sorted(chance.randrange(len(data) + 1) for _ in range(count))
    for begin, end in pairwise([0, *places, len(data)]):
        if begin != end:
            yield data[begin:end]


async def observe(pieces: list[bytes], heads: HeadCache) -> Seen:
    """Send `pieces` on a connection, answer the requests, and hang up; nothing may be left."""
    server = FakeServer(max_body=100)
    know(server, heads)
    with capture_logs():  # errors of the fakes would be written with a traceback
        for piece in pieces:
            server.send(piece)
            await settle(server)
        closed = server.transport.closes()
        server.lose()
        await settle(server)
    assert server.plane.memory.used == 0
    assert server.plane.reading == 0
    asked = [lease.inputs for lease in server.plane.waiting]
    written = GENERATED_ID.sub(b"", bytes(server.transport.written))
    return Seen(written, closed, asked, server.plane.refusals)


async def settle(server: FakeServer) -> None:
    """Answer until nothing more is written."""
    written = -1
    while written < (written := len(server.transport.written)):
        await server.answer_all()
        await iterations(PIPELINE)


def read(sent: bytes) -> Iterator[Asked]:
    """Yield the complete requests before the first that h11 refuses."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(sent)
    method, body = b"", b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return
        if isinstance(event, h11.Request):
            method, body = event.method, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            yield Asked(method, body)
            if connection.their_state is not h11.DONE:
                return
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE:
                return
            connection.start_next_cycle()
        else:
            return


def check_answers(written: bytes, asked: list[Asked]) -> None:
    """Assert that each 200 has the body of the same request, which all routes here return."""
    heads = [place for place, one in enumerate(asked) if one.method == b"HEAD"]
    found = [one for one in answers(written, heads) if one.status >= 200]
    for answer, request in zip(found, asked, strict=False):
        if answer.status == 200 and request.method != b"HEAD":
            assert answer.body == request.body, f"{request} got {answer}"
