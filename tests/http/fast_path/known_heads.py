"""Requests with heads of many kinds, and head caches that have seen them or keep nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from copy import copy
from functools import cache

from cohort.http.fast_path.head_cache import HeadCache
from cohort.http.fast_path.heads import Head
from tests.http.fakes import FakeServer, asgi, hot
from tests.http.wire import chunked, request

REQUESTS = (
    hot(b"1"),
    hot(b"2"),
    hot(b"bad"),
    hot(b"bug"),
    hot(b"unwritable"),
    hot(b""),
    hot(b"x" * 200),  # over the limit
    hot(b"3", "connection: keep-alive", "x-user: me"),
    hot(b"4", "connection: close"),
    hot(b"20", "x-request-id: one"),
    hot(b"21", "X-Request-ID: two"),
    hot(b"22", "X-Request-ID: a-third", "x: y"),
    hot(b"bad", "X-Request-Id: fourth"),
    hot(b"23", "X-Request-ID: one", "X-Request-ID: two"),
    hot(b"24", "x-request-id: no id"),
    hot(b"25", "x-request-id:"),
    hot(b"26", f"x-request-id: {'long' * 50}"),
    hot(b"5", "expect: 100-continue"),
    hot(b"6", "accept-encoding: gzip"),
    hot(b"30", "trace: one", "x: y"),
    hot(b"31", "trace: two", "x: y"),
    hot(b"32", "x: y"),
    hot(b"33", "trace: three", "trace: four", "x: y"),
    hot(b"34", "Trace: five", "x: y"),
    hot(b"35", "trace:six", "x: y"),
    hot(b"36", "trace:", "x: y"),
    hot(b"37", "trace: seven", " continued", "x: y"),
    hot(b"38", "trace: \x00", "x: y"),
    hot(b"39", "trace: a\tb", "x: y"),
    hot(b"40", "trace: \xe4", "x: y"),
    hot(b"41", "trace: a\nhost: b", "x: y"),
    hot(b"42", "trace: a\rb", "x: y"),
    hot(b"43", "trace : eight", "x: y"),
    hot(b"44", "trace: nine", "x-request-id: six", "x: y"),
    hot(b"45", "trace: ten", "x-request-id: not readable", "x: y"),
    hot(b"46", "trace: eleven", "host: other", "x: y"),
    hot(b"47", "trace: twelve", "connection: close", "x: y"),
    hot(b"7", "connection: upgrade", "upgrade: h2c"),
    hot(b"8", "content-length: 3"),  # more is to come
    hot(b"9\r\n\r\n", "content-length: 1"),  # and too much
    hot(chunked(b"10"), "transfer-encoding: chunked"),
    hot(chunked(b"11", trailers=["x: y"]), "transfer-encoding: chunked", "content-length: 5"),
    hot(chunked(b"1", b"0"), "Transfer-Encoding: Chunked", "x-request-id: five"),
    hot(chunked(b""), "transfer-encoding: chunked"),
    hot(b"12", "x: \xe4"),
    hot(b"13", "x: a", " continued"),
    hot(b"14").replace(b"\r\n", b"\n"),
    b"\r\n" + hot(b"15"),
    request("/hot", b"16", version="1.0"),
    request("/hot", b"17", method="PUT"),
    request("/hot?x", b"18"),
    asgi(b"19"),
    b"nonsense\r\n\r\n",
    b"\r\n\r\n",
    b"\r\n\r\nPOST /hot HTTP/1.1\r\n\r\n",  # what the line above must not come to mean
)


GENERATED_ID = re.compile(rb"x-request-id: [0-9a-f]{8}-[0-9a-f]+\r\n")


class Forgetful(dict[bytes, Head]):
    """A dict that accepts every item and keeps none."""

    def __setitem__(self, key: bytes, value: Head) -> None: ...

    def copy(self) -> Forgetful:
        return self


async def talk(server: FakeServer, segments: Iterable[bytes]) -> None:
    """Send the segments one by one, and answer each request."""
    for segment in segments:
        server.send(segment)
        await server.answer_all()


@cache
def known_heads() -> HeadCache:
    """Return the cache of a server that received each request twice, each on a new connection."""

    async def run() -> HeadCache:
        server = FakeServer(max_body=100)
        for one in (*REQUESTS, *REQUESTS):
            server.connect()
            await talk(server, [one])
        return server.hot.heads

    return asyncio.run(run())


def forgetful() -> HeadCache:
    """Return a cache that keeps nothing."""
    heads = HeadCache()
    heads.known = Forgetful()
    return heads


def know(server: FakeServer, heads: HeadCache) -> None:
    """Give `server` a copy of another server's cache."""
    known = server.hot.heads = server.protocol.heads = copy(heads)
    known.known = heads.known.copy()
    for head in known.known.values():
        head.plane = server.hot.plane  # not that of the server that parsed it
