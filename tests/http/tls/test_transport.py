"""A TLS transport between a protocol and a caller that reads on the test's command."""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.http.tls.transport import AHEAD_BYTES, FED_BYTES, RECORD_BYTES, TlsTransport
from tests.certificates import serve_with, trusting
from tests.examples import examples
from tests.waiting import iterations


class Below(asyncio.Transport):
    """A transport whose caller reads nothing, until `take`."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = bytearray()
        self.ended = self.closed = self.aborted = self.paused = False
        self.above: TlsTransport | None = None

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        assert not self.closed or not data
        self.unread += data
        if not self.paused and len(self.unread) > AHEAD_BYTES and self.above is not None:
            self.paused = True
            self.above.pause_writing()

    def take(self) -> bytes:
        """Read everything."""
        data = bytes(self.unread)
        self.unread.clear()
        if self.paused and self.above is not None:
            self.paused = False
            self.above.resume_writing()
        return data

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == AHEAD_BYTES

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Recorder(asyncio.Protocol):
    """Records the calls it gets."""

    def __init__(self) -> None:
        self.received = b""
        self.told: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> None:
        self.told.append("eof")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


class Ends:
    """A transport, and its caller's end of TLS."""

    def __init__(self, contexts: Sequence[ssl.SSLContext]) -> None:
        client, server = contexts
        self.up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = client.wrap_bio(down, self.up, server_hostname="localhost")
        tls = server.wrap_bio(incoming, outgoing, server_side=True)
        for _ in range(3):
            for end, sent, arrives in ((self.tls, self.up, incoming), (tls, outgoing, down)):
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                arrives.write(sent.read())
        self.down, self.below, self.protocol = down, Below(), Recorder()
        self.transport = TlsTransport(
            asyncio.get_running_loop(),
            self.below,
            tls,
            incoming=incoming,
            outgoing=outgoing,
            protocol=self.protocol,
        )
        self.below.above = self.transport

    def send(self, data: bytes) -> bytes:
        """Return the encrypted bytes that the caller sends for `data`."""
        for start in range(0, len(data), RECORD_BYTES):
            self.tls.write(data[start : start + RECORD_BYTES])
        return self.up.read()

    async def read_all(self) -> tuple[bytes, bool]:
        """What the caller reads until nothing more comes, and whether TLS has ended then."""
        read = b""
        while True:
            await iterations(3)
            self.down.write(self.below.take())
            try:
                while part := self.tls.read(RECORD_BYTES):
                    read += part
            except ssl.SSLWantReadError:
                if not self.below.unread and not self.transport.get_write_buffer_size():
                    return read, False
            else:
                return read, True


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Sequence[ssl.SSLContext]:
    """A client's and a server's."""
    folder: Path = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    files = serve_with(ca, folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files["tls_cert"], files["tls_key"])
    return trusting(ca, folder), server


SIZES = st.lists(
    st.sampled_from([0, 1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, AHEAD_BYTES, 500_000]),
    max_size=8,
)


@given(sizes=SIZES, closing=st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_what_is_written_arrives(
    contexts: Sequence[ssl.SSLContext], sizes: list[int], closing: bool
) -> None:
    """All of it arrives in order, and then the end of TLS, if it was closed."""

    async def run() -> None:
        ends = Ends(contexts)
        written = [bytes([number]) * size for number, size in enumerate(sizes)]
        ends.transport.writelines(written)
        if closing:
            ends.transport.close()
            ends.transport.write(b"too late")
        assert await ends.read_all() == (b"".join(written), closing)
        assert ends.below.closed == closing
        assert ends.protocol.told.count("pause") >= ends.protocol.told.count("resume")

    asyncio.run(run())


@given(
    sizes=st.lists(st.integers(1, 100_000), min_size=1, max_size=5),
    cut=st.sampled_from([100, 1400, 16_413, FED_BYTES + 1, 256_000]),
)
@settings(max_examples=examples(40), deadline=None)
def test_what_is_sent_is_received(
    contexts: Sequence[ssl.SSLContext], sizes: list[int], cut: int
) -> None:
    """It arrives in segments cut anywhere, and then the end."""

    async def run() -> None:
        ends = Ends(contexts)
        sent = [bytes([number]) * size for number, size in enumerate(sizes)]
        data = b"".join(map(ends.send, sent))
        with suppress(ssl.SSLWantReadError):
            ends.tls.unwrap()
        data += ends.up.read()
        for start in range(0, len(data), cut):
            ends.transport.received(data[start : start + cut])
        assert ends.protocol.received == b"".join(sent)
        assert ends.protocol.told == ["eof"]
        assert ends.transport.is_closing()

    asyncio.run(run())


async def test_a_caller_who_reads_nothing_holds_what_was_written(
    contexts: Sequence[ssl.SSLContext],
) -> None:
    """Little of it is encrypted, all of it is counted, and the protocol is paused once."""
    ends = Ends(contexts)
    ends.transport.write(b"x" * 5_000_000)
    await iterations()
    assert len(ends.below.unread) < 2 * AHEAD_BYTES
    assert 5_000_000 <= ends.transport.get_write_buffer_size() < 5_010_000
    assert ends.protocol.told == ["pause"]
    ends.transport.close()
    assert not ends.below.closed
    ends.transport.abort()
    assert ends.below.aborted
    assert ends.transport.get_write_buffer_size() == len(ends.below.unread)


async def test_nothing_is_handed_over_while_reading_is_paused(
    contexts: Sequence[ssl.SSLContext],
) -> None:
    """Data that arrived during the pause follows when reading resumes."""
    ends = Ends(contexts)
    ends.transport.pause_reading()
    ends.transport.received(ends.send(b"later"))
    assert ends.protocol.received == b""
    ends.transport.resume_reading()
    await iterations()
    assert ends.protocol.received == b"later"


async def test_what_is_no_record_ends_the_connection(contexts: Sequence[ssl.SSLContext]) -> None:
    """The connection ends with an alert, and later bytes are dropped."""
    ends = Ends(contexts)
    data = ends.send(b"x" * 100_000)
    for start in (0, 40_000):
        ends.transport.received(
            data[start : start + 30_000] + b"\x17\x03\x03\x00\x20" + b"?" * 40_000
        )
    assert ends.below.closed
    assert len(ends.protocol.received) <= 30_000
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        await ends.read_all()


async def test_the_end_of_writing_leaves_the_connection_open(
    contexts: Sequence[ssl.SSLContext],
) -> None:
    """A refused caller reads why, and what it still sends is discarded."""
    ends = Ends(contexts)
    ends.transport.write(b"refused")
    ends.transport.write_eof()
    assert (ends.below.ended, ends.below.closed) == (True, False)
    ends.transport.received(ends.send(b"more"))
    assert await ends.read_all() == (b"refused", True)
    assert ends.protocol.received == b""
    ends.transport.close()
    assert ends.below.closed


async def test_a_lost_connection_is_told_once(contexts: Sequence[ssl.SSLContext]) -> None:
    """Unsent bytes are dropped."""
    ends = Ends(contexts)
    ends.transport.write(b"x" * 1_000_000)
    ends.below.closed = True
    ends.transport.lost(None)
    assert ends.protocol.told[-1] == "lost"
    ends.transport.write(b"more")
    ends.transport.close()
    await iterations()
    assert ends.transport.get_write_buffer_size() == len(ends.below.unread)


async def test_a_lost_connection_is_freed_without_the_garbage_collector(
    contexts: Sequence[ssl.SSLContext],
) -> None:
    """Its protocol refers to it, and the state of TLS has tens of kilobytes."""
    ends = Ends(contexts)
    ends.protocol.connection_made(ends.transport)
    transport = weakref.ref(ends.transport)
    gc.disable()
    try:
        ends.transport.lost(None)
        ends.below.above = None
        assert ends.protocol.told == ["lost"]
        del ends
        assert transport() is None
    finally:
        gc.enable()
