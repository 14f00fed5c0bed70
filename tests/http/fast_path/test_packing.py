"""The fast path compresses long responses if the caller accepts it."""

from __future__ import annotations

import zlib

import pytest

from cohort.codec.compression import GZIP
from cohort.http.compression import COMPRESS_AT_ONCE, MIN_COMPRESSED
from tests.http.fakes import FakeServer, hot
from tests.waiting import until

GZIPPED = "accept-encoding: gzip"


async def answered(server: FakeServer) -> None:
    """Wait for the response, which a thread may compress."""
    await server.answer_all()
    await until(lambda: bool(server.transport.written))


@pytest.mark.parametrize("size", [MIN_COMPRESSED, COMPRESS_AT_ONCE, COMPRESS_AT_ONCE + 1])
async def test_a_long_response_is_compressed(size: int) -> None:
    """The event loop compresses it up to a size, then a thread; the headers name the coding."""
    server = FakeServer()
    server.send(hot(b"a" * size, GZIPPED))
    await answered(server)
    (answer,) = server.transport.answers
    assert (answer.headers["content-encoding"], answer.headers["vary"]) == (
        "gzip",
        "accept-encoding",
    )
    assert zlib.decompress(answer.body, GZIP) == b"a" * size
    assert server.hot.answered == 1


@pytest.mark.parametrize(
    "header", ["accept-encoding: gzip, deflate, br", "accept-encoding: identity", "accept: gzip"]
)
async def test_nothing_is_compressed_unasked(header: str) -> None:
    """What libraries send with every request allows it, and does not ask for it."""
    server = FakeServer()
    server.send(hot(b"a" * 5000, header))
    await answered(server)
    assert [one.body for one in server.transport.answers] == [b"a" * 5000]


async def test_short_responses_and_errors_stay_as_they_are() -> None:
    """Compressing them costs more than it saves."""
    server = FakeServer()
    for body in (b"a" * (MIN_COMPRESSED - 1), b"bad"):
        server.send(hot(body, GZIPPED))
        await server.answer_all()
    plain, refused = server.transport.answers
    assert plain.body == b"a" * (MIN_COMPRESSED - 1)
    assert refused.code == "InvalidInput"


async def test_a_caller_that_leaves_meanwhile_is_written_nothing() -> None:
    """The connection is gone when the thread is done."""
    server = FakeServer()
    server.send(hot(b"a" * (COMPRESS_AT_ONCE + 1), GZIPPED))
    cycle = server.protocol.cycle
    server.plane.waiting[0].answer()
    server.lose()
    await server.answer_all()
    assert cycle.left
    assert not server.transport.written


async def test_requests_behind_one_that_is_compressed_wait() -> None:
    """Responses come in the order of the requests."""
    server = FakeServer()
    server.send(hot(b"a" * (COMPRESS_AT_ONCE + 1), GZIPPED) + hot(b"2"))
    await server.answer_all()
    await until(lambda: len(server.plane.waiting) == 2)
    await server.answer_all()
    first, second = server.transport.answers
    assert first.headers["content-encoding"] == "gzip"
    assert second.body == b"2"
