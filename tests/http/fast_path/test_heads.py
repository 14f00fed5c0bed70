"""A head that was seen before means what it meant: answers are those of a server that forgets."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from httptools import HttpRequestParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cohort.auth import ApiKey, KeyRing, digest_of
from cohort.auth.authority import Authority
from cohort.errors import InvalidInput
from cohort.http.fast_path.head_cache import (
    MATTER,
    MAX_HEAD_BYTES,
    MAX_HEADS,
    MAX_SENT_BYTES,
    MAX_VARYING,
    HeadCache,
)
from cohort.http.fast_path.heads import Head, SentHeaders
from cohort.http.v2.infer import match_infer
from cohort.serving import DataPlane, Sticky
from tests.examples import examples
from tests.http.fakes import FakeServer, hot
from tests.http.fast_path.known_heads import (
    GENERATED_ID,
    REQUESTS,
    forgetful,
    know,
    known_heads,
    talk,
)


async def observe(segments: list[bytes], heads: HeadCache) -> tuple[object, ...]:
    """Return all effects of a connection's segments, if `heads` are known."""
    server = FakeServer(max_body=100)
    server.plane.sticky = Sticky(header="trace")
    know(server, heads)
    with capture_logs():  # a traceback of each bug would take most of the time
        await talk(server, segments)
    asked = [lease.inputs for lease in server.plane.waiting]
    written = GENERATED_ID.sub(b"", bytes(server.transport.written))
    keys = server.plane.keys
    return written, server.transport.closes(), asked, server.plane.refusals, keys


def seen(segments: list[bytes], heads: HeadCache) -> tuple[object, ...]:
    return asyncio.run(observe(segments, heads))


@pytest.mark.parametrize("sent", REQUESTS)
def test_a_cached_head_is_read_like_a_parsed_one(sent: bytes) -> None:
    """It is read so on a new connection and again on the same one, in two parts cut anywhere."""

    async def run() -> None:
        for cut in range(len(sent)):
            segments = [part for part in (sent[:cut], sent[cut:]) if part] * 2
            got = await observe(segments, known)
            assert got == await observe(segments, forgetful()), segments

    known = known_heads()
    assert b"\r\ntrace:" in known.varying
    asyncio.run(run())


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Some requests, each as one segment, except for a few cuts and a few joined ones."""
    segments = [b""]
    for one in draw(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4)):
        cut = draw(st.just(0) | st.integers(0, len(one)))
        segments[-1] += one[:cut]
        segments.append(one[cut:])
    return [segment for segment in segments if segment]


@settings(max_examples=examples(100), deadline=None)
@given(segments=conversations())
@example(segments=[REQUESTS[0], b"\r\n", REQUESTS[0]])
@example(segments=[hot(b"x" * 20)[:-10], b"x" * 10, REQUESTS[0]])
def test_segments_do_not_change_how_heads_are_read(segments: list[bytes]) -> None:
    """Several requests on a connection may be split and joined anywhere."""
    assert seen(segments, known_heads()) == seen(segments, forgetful())


async def test_a_head_is_parsed_once() -> None:
    """After that it is looked up on any connection."""
    server = FakeServer()
    server.send(hot(b"1"))
    await server.answer_all()
    server.connect()
    server.protocol.parser = cast("HttpRequestParser", None)
    server.send(hot(b"2"))
    await server.answer_all()
    assert [one.body for one in server.transport.answers] == [b"2"]


@pytest.mark.parametrize("cut", [0, 1, 2])
async def test_a_body_that_comes_after_its_head_is_not_parsed_either(cut: int) -> None:
    """It may come in any number of segments, the last of which begins another request."""
    server = FakeServer()
    server.send(hot(b"abc"))
    await server.answer_all()
    server.protocol.parser = cast("HttpRequestParser", None)
    sent = hot(b"xyz")
    end = len(sent) - 3 + cut
    server.send(sent[:end], *(bytes([one]) for one in sent[end:-1]), sent[-1:] + hot(b"123"))
    await server.answer_all()
    assert [one.body for one in server.transport.answers] == [b"abc", b"xyz", b"123"]


async def test_a_caller_is_counted_by_the_head_that_is_looked_up() -> None:
    """A caller counts once, even if it is refused or leaves before its body has come."""
    keys = KeyRing()
    keys.follow([ApiKey("web", digest_of("w").hex(), concurrency=1)])
    (caller,) = keys.callers
    server = FakeServer()
    server.hot.authority = Authority(keys, asks_callers=True)
    sent = hot(b"abc", "x-api-key: w")
    server.send(sent)
    await server.answer_all()
    server.send(sent[:-1])
    assert caller.in_flight == 1
    first = server.protocol
    server.connect()
    server.send(sent[:-3])
    assert [one.code for one in server.transport.answers] == ["Overloaded"]
    assert caller.refused["concurrency"] == 1
    server.send(sent[-3:])
    first.connection_lost(None)
    assert caller.in_flight == 0
    server.send(sent[:-2], sent[-2:])
    await server.answer_all()
    assert [one.code for one in server.transport.answers] == ["Overloaded", "OK"]


async def test_a_request_that_closes_its_connection_is_looked_up() -> None:
    """Each is on a new connection; later bytes are ignored."""
    server = FakeServer()
    for body in (b"1", b"2"):
        server.connect()
        server.send(hot(body, "connection: close"), b"garbage")
        server.protocol.parser = cast("HttpRequestParser", None)
        await server.answer_all()
        (answer,) = server.transport.answers
        assert (answer.body, answer.headers["connection"]) == (body, "close")
        assert server.transport.closes()
        server.send(hot(b"late"))
    assert len(server.plane.waiting) == 2


@pytest.mark.parametrize("cut", [0, 1])
async def test_nothing_is_read_after_a_looked_up_request_that_closes(cut: int) -> None:
    """Bytes after its body are not read, in the same segment or in a later one."""
    server = FakeServer()
    sent = hot(b"1", "connection: close")
    server.send(sent)
    server.connect()
    late = hot(b"late")
    server.send(*([sent[:-1], sent[-1:] + late] if cut else [sent]), late)
    assert not server.protocol.pipeline
    await server.answer_all()
    assert [one.body for one in server.transport.answers] == [b"1"]


async def test_a_slow_body_after_a_looked_up_head_is_one_that_arrives() -> None:
    """The sweep sees the arrival of its parts, and closes it when no more arrive."""
    server = FakeServer(keep_alive=1000)
    sent = hot(b"x" * 70_000)
    server.send(sent)
    await server.answer_all()
    server.send(sent[:-60_000])
    server.sweep(0)
    server.send(sent[-60_000:-1])
    server.sweep(25)
    assert not server.transport.closes()
    server.sweep(60)
    assert [one.code for one in server.transport.answers] == ["OK", "InvalidInput"]


async def test_heads_that_differ_in_a_line_nobody_reads_are_parsed_twice() -> None:
    """The second time shows what differs; those after it are looked up, on any connection."""
    server = FakeServer()
    for number in range(2):
        server.send(hot(b"1", f"traceparent: {number}", "x: y", f"cookie: {number}"))
        await server.answer_all()
    for number in range(2, 9):
        server.connect()
        server.protocol.parser = cast("HttpRequestParser", None)
        server.send(hot(b"2", f"traceparent: {number}", "x: y", f"cookie: {number}"))
        await server.answer_all()
        assert [one.body for one in server.transport.answers] == [b"2"]
    assert len(server.hot.heads.known) == 2  # the first as it was sent


async def test_a_client_that_offers_http2_is_parsed_once() -> None:
    """Java's sends its offer with each request, and each is declined."""
    server = FakeServer()
    offer = ("connection: Upgrade, HTTP2-Settings", "http2-settings: AAEAAEAA", "upgrade: h2c")
    server.send(hot(b"1", *offer))
    await server.answer_all()
    server.connect()
    server.protocol.parser = cast("HttpRequestParser", None)
    server.send(hot(b"2", *offer))
    await server.answer_all()
    assert [one.body for one in server.transport.answers] == [b"2"]


@pytest.mark.parametrize("name", sorted(MATTER))
def test_what_matters_is_never_left_out(name: bytes) -> None:
    """It stays in the head, however often its value changes and however its name is written."""
    heads = HeadCache()
    for number in range(4):
        for spelled in (name, name.title()):
            heads._learn(b"POST / HTTP/1.1\r\n%b: %d\r\n\r\n" % (spelled, number))
    assert heads.varying == ()


def test_lines_that_vary_are_learned_up_to_a_number() -> None:
    """The last learned stay: a client that makes up names has no say in what others' cost."""
    heads = HeadCache()
    for number in range(40):
        for value in "ab":
            heads._learn(b"POST / HTTP/1.1\r\nx-%d: %b\r\n\r\n" % (number, value.encode()))
    assert heads.varying == tuple(b"\r\nx-%d:" % number for number in range(40 - MAX_VARYING, 40))


async def test_heads_that_differ_in_their_request_id_share_an_entry() -> None:
    """Each response has the id of its request."""
    server = FakeServer()
    for number in range(10):
        server.send(hot(b"1", f"x-request-id: id-{number}", "x: y"))
        await server.answer_all()
    ids = [one.headers["x-request-id"] for one in server.transport.answers]
    assert ids == [f"id-{number}" for number in range(10)]
    assert len(server.hot.heads.known) == 1


@pytest.mark.parametrize("header", ["x-user", "x-request-id"])
async def test_a_sticky_key_is_the_requests_own(header: str) -> None:
    """This holds also for a head equal to earlier ones; without the header there is no key."""
    server = FakeServer()
    server.plane.sticky = Sticky(header=header)
    for sent in ([f"{header}: a"], [f"{header}: a"], [f"{header}: b"], []):
        server.send(hot(b"1", *sent))
        await server.answer_all()
    assert server.plane.keys == ["a", "a", "b", None]


@pytest.mark.parametrize("length", ["5000", "x", "-1"])
def test_a_length_that_is_wrong_is_told_of_the_body_that_came(length: str) -> None:
    """The first request of a head, which asks how small ones are read, gets the same error."""
    route = match_infer("/v2/models/m/infer")
    assert route is not None
    headers = SentHeaders([(b"inference-header-content-length", length.encode())])
    head = Head(route, b"", headers, 1, plane=cast("DataPlane", None))
    said = []
    for _ in range(2):
        with pytest.raises(InvalidInput) as raised:
            head.read(b"{")
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert "4096" not in said[0]


async def test_the_head_cache_is_bounded() -> None:
    """The cache of heads is bounded in number and in size, also with varying headers."""
    server = FakeServer()
    server.send(hot(b"1", f"accept: {'a' * MAX_HEAD_BYTES}"))
    await server.answer_all()
    assert not server.hot.heads.known
    for number in range(MAX_HEADS + 10):
        server.send(hot(b"1", f"accept: {number}"))
        await server.answer_all()
    assert len(server.hot.heads.known) == 10


async def test_a_long_cookie_is_no_obstacle_up_to_a_size() -> None:
    """Varying headers do not count in the cache or in the kept bytes."""
    server = FakeServer()
    for number in range(3):
        server.send(hot(b"1", f"cookie: {number}{'a' * (MAX_HEAD_BYTES + 10)}"))
        await server.answer_all()
    assert [len(key) < 200 for key in server.hot.heads.known] == [True]
    server.hot.heads.known.clear()
    server.send(hot(b"1", f"cookie: {'a' * MAX_SENT_BYTES}"))
    await server.answer_all()
    assert not server.hot.heads.known
